"""The demo of Spark: its plan, its options, and its account of windows and alerts."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from meshq.demo import main
from meshq.demo._sparked import (
    Account,
    Hour,
    SparkOptions,
    account_of,
    account_table,
    hours_of,
    parse_hour,
    parse_sparked,
    plan_strikes,
    span_of,
)
from meshq.errors import SettingsError

LINE = b"2013,1,1,517,515,%b,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
LINES = [*[LINE % b"60"] * 5, LINE % b"NA", (LINE % b"-3").replace(b"UA", b"DL")]
UA, DL = ("2013-01-01T10", "UA"), ("2013-01-01T10", "DL")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the demo needs is there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: name)


def test_windows_are_counted_as_the_file_has_them() -> None:
    assert hours_of(LINES) == {UA: Hour(6, 5, 300), DL: Hour(1, 1, -3)}
    assert Hour(6, 5, 300).is_alert and not Hour(6, 5, 299).is_alert and not Hour(4, 4, 900).is_alert
    assert parse_hour("2013-01-01T10,UA,6,5,300") == (UA, Hour(6, 5, 300))
    with pytest.raises(ValueError, match=r"literal"):
        parse_hour("2013-01-01T10,UA,six,5,300")


def good() -> Account:
    account = account_of(LINES)
    account.table = [(UA, Hour(6, 5, 300)), (DL, Hour(1, 1, -3))]
    account.alerts = {"1": (UA, Hour(6, 5, 300))}
    return account


def test_an_account_that_fits_says_so() -> None:
    assert good().differences == []
    assert account_table(good()).endswith(
        "7 flights, 2 windows and 1 alerts: each window as in the file, each alert once."
    )


def test_the_account_names_what_differs() -> None:
    account = good()
    del account.table[0]
    assert account.differences == ["1 windows are missing: 2013-01-01T10 UA is one"]
    account = good()
    account.table.append(account.table[0])
    assert account.differences == ["1 windows came more than once"]
    account = good()
    account.table[1] = (DL, Hour(1, 1, -2))
    assert account.differences == ["1 windows have other numbers: 2013-01-01T10 DL is one"]
    account = good()
    account.table.append((("2013-01-01T11", "DL"), Hour(1, 1, 1)))
    assert account.differences == ["1 windows are not in the file: 2013-01-01T11 DL is one"]
    account = good()
    account.alerts["2"] = account.alerts["1"]
    assert account.differences == ["1 alerts came more than once"]
    account = good()
    account.alerts.clear()
    assert account.differences == ["1 alerts are missing: 2013-01-01T10 UA is one"]
    account = good()
    account.again, account.left = 1, ["a stage is left: 7"]
    assert account.differences == ["1 alerts came again", "a stage is left: 7"]
    assert account_table(account).endswith("\na stage is left: 7")


def test_a_seed_says_which_node_is_killed_and_when() -> None:
    assert plan_strikes(1, 100_000) == plan_strikes(1, 100_000)
    found = [plan_strikes(seed, 100_000) for seed in range(200)]
    assert {one.node for one in found} == {1, 2, 3}
    assert all(15_000 <= one.node_at <= 35_000 and 50_000 <= one.query_at <= 70_000 for one in found)
    assert len({one.query_at for one in found}) > 190


def test_the_span_of_rows_is_the_longest_between_two_of_them() -> None:
    hours = ["2013-01-01T10", "2013-01-01T10", "2013-01-01T12", "2013-01-02T12"]
    assert span_of(hours, 1) == 24 * 3_600
    assert span_of(hours, 2) == 26 * 3_600
    assert span_of(hours, 9) == 26 * 3_600


@pytest.mark.usefixtures("installed")
def test_the_rows_and_the_seed_may_be_said() -> None:
    assert parse_sparked(["--spark"]) == SparkOptions(rows=None, seed=1)
    assert parse_sparked(["--spark", "--rows", "15000", "--seed", "7"]) == SparkOptions(rows=15_000, seed=7)
    with pytest.raises(SettingsError, match="rows=14999 is not allowed; allowed: a whole number from 15,000"):
        parse_sparked(["--spark", "--rows", "14999"])


def test_what_is_not_installed_is_said_in_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["--spark"]) == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert main(["--spark"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("the demo needs pyspark, which is not installed: pip install 'meshq[spark]'")
    assert second.endswith("the demo needs Java, which is not installed: apt-get install openjdk-17-jre-headless")
