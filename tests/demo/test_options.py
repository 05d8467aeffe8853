"""The command line says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq.demo._kill_plan import ROWS_MIN
from meshq.demo._main import data_directory, main
from meshq.demo._options import Options, parse_options
from meshq.errors import SettingsError


def test_nothing_given_means_all_flights_and_both_kills() -> None:
    options = parse_options([])
    assert options == Options(nodes=3, rows=None, kill=True, first_killed=None, json=False, data_dir=None)
    assert options.killed_first == 2


def test_everything_can_be_given() -> None:
    given = parse_options(["--rows", "5", "--no-kill", "--json", "--data-dir", "d", "--nodes", "4"])
    assert given == Options(nodes=4, rows=5, kill=False, json=True, data_dir="d")
    assert parse_options(["--discover"]).discover == parse_options(["--discover", "multicast"]).discover == "multicast"
    assert parse_options(["--discover", "directory"]) == Options(nodes=5, discover="directory")
    assert parse_options(["--discover", "--nodes", "3"]).nodes == 3
    assert parse_options(["--nodes", "5", "--kill", "4"]).killed_first == 4
    assert parse_options(["--nodes", "1"]).killed_first == parse_options(["--nodes", "1", "--kill", "1"]).killed_first


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--rows", "0", "--no-kill"], "a whole number from 1"),
        (["--rows", "-3"], "a whole number from 1"),
        (["--rows", str(ROWS_MIN - 1)], "20000 or more"),
    ],
)
def test_a_number_of_rows_that_cannot_be_is_refused(arguments: list[str], allowed: str) -> None:
    with pytest.raises(SettingsError, match=f"rows={arguments[1]} is not allowed; allowed: {allowed}"):
        parse_options(arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "0"], "nodes=0 is not allowed; allowed: 1 to 5"),
        (["--nodes", "6"], "nodes=6 is not allowed; allowed: 1 to 5"),
        (["--kill", "4"], "kill=4 is not allowed; allowed: 2 to 3; node 1, the producer's own, is killed second"),
        (["--kill", "1"], "kill=1 is not allowed; allowed: 2 to 3; node 1"),
        (["--nodes", "2", "--kill", "3"], "kill=3 is not allowed; allowed: 2; node 1"),
        (["--nodes", "1", "--kill", "2"], "kill=2 is not allowed; allowed: 1, the only node"),
        (["--kill", "2", "--no-kill"], "kill=2 is not allowed; allowed: nothing with --no-kill"),
        (["--nodes", "1", "--discover"], "discover='multicast' is not allowed; allowed: with 3 nodes or more"),
        (["--nodes", "2", "--discover"], "discover='multicast' is not allowed; allowed: with 3 nodes or more"),
        (["--discover", "--rows", "37499"], "rows=37499 is not allowed; allowed: 37500 or more"),
        (["--nodes", "5", "--rows", "32499"], "rows=32499 is not allowed; allowed: 32500 or more"),
    ],
)
def test_nodes_that_cannot_be_are_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_options(arguments)
    assert str(refused.value).startswith(said)


def test_so_few_rows_that_the_kills_catch_nothing_are_allowed_without_them() -> None:
    assert parse_options(["--rows", "7", "--no-kill"]).rows == 7
    assert parse_options(["--rows", str(ROWS_MIN)]).kill
    assert parse_options(["--discover", "--rows", "7", "--no-kill"]).moves is False
    assert parse_options(["--discover", "--rows", "37500"]).moves


def test_the_help_says_what_a_kill_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "at least 20,000, or 6,500 for each node if that is more, unless --no-kill" in text
    assert "500 messages are delivered and unacknowledged and 5,000 are ready (one node)" in text
    assert "500 wait on node 1 for the one that is killed" in text


def test_a_wrong_setting_is_status_2_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "100"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("python -m meshq demo: rows=100 is not allowed; allowed: 20000 or more")


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(SettingsError, match=r"data_dir=.* is empty or missing"), data_directory(str(tmp_path)):
        pass
    with pytest.raises(SettingsError, match=r"data_dir=.*Not a directory"), data_directory(f"{tmp_path}/old"):
        pass


def test_a_directory_that_is_missing_or_empty_is_taken_and_left(tmp_path: Path) -> None:
    for given in (str(tmp_path), f"{tmp_path}/new"):
        with data_directory(given) as path:
            assert path == given
