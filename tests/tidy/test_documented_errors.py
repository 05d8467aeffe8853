"""Every error that a public docstring names is raised by a test, as ``tests/documented_errors.toml`` says."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from tests import documented_errors
from tests.documented_errors import TABLE, Pair
from tests.tidy import conformance
from tests.tidy.sources import ROOT, python_files

pytestmark = [pytest.mark.rules, pytest.mark.xdist_group("tidy")]
SOME = [Pair("A.f", "UsageError"), Pair("A.f", "ClosedError", "A"), Pair("A.g", "ClosedError", "A")]
THERE = {"A.f": {"UsageError": ["t.py::test_1"]}, "A.*": {"ClosedError": ["t.py::test_2"]}}
TESTS = frozenset({"t.py::test_1", "t.py::test_2"})


@functools.cache
def known_tests() -> Any:
    """What pytest would collect."""
    return conformance.node_ids(python_files("tests"))


def wrong(**changes: Any) -> list[str]:
    """What is said of the small table, changed."""
    return list(documented_errors.problems(SOME, THERE | changes, TESTS))


def test_every_documented_error_is_raised_by_a_test() -> None:
    wanted = documented_errors.pairs()
    assert len({pair.callable for pair in wanted}) > 60
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert not "\n".join(documented_errors.problems(wanted, table, known_tests()))


def test_every_docstring_names_its_errors_as_they_are_read() -> None:
    assert not "\n".join(documented_errors.unread())


@pytest.mark.real
def test_each_error_comes_out_of_the_call_that_names_it_in_a_test_that_is_named_for_it() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MESHQ_COVERAGE"))}
    command = [sys.executable, "tools/documented_errors.py"]
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    assert ", 0 of them not shown" in found.stdout


def test_the_table_is_in_order() -> None:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert list(table) == sorted(table)
    assert all(list(errors) == sorted(errors) for errors in table.values())


def test_a_pair_that_is_missing_stale_or_shown_by_no_test_is_found() -> None:
    assert wrong() == []
    assert wrong(**{"A.f": {}}) == ["A.f names UsageError, and no test shows it: add 'UsageError = [...]' to [\"A.f\"]"]
    assert wrong(**{"A.h": {"BusyError": ["t.py::test_1"]}}) == ["A.h names no BusyError: take it out of the table"]
    assert wrong(**{"A.f": {"UsageError": ["t.py::test_3"]}}) == ["A.f UsageError: there is no test t.py::test_3"]
    assert wrong(**{"A.f": {"UsageError": []}}) == ["A.f UsageError: no list of node ids"]


def test_errors_are_read_with_the_sentence_beside_them() -> None:
    doc = """Do.

    Raises:
        UsageError, BusyError: it was done
            before, says ``BusyError``.
        ClosedError: see the class.
    """
    assert list(documented_errors.entries(doc)) == [
        ("UsageError", "UsageError, BusyError: it was done before, says ``BusyError``."),
        ("BusyError", "UsageError, BusyError: it was done before, says ``BusyError``."),
        ("ClosedError", "ClosedError: see the class."),
    ]
    assert list(documented_errors.entries("Never.  Raises: none of them.")) == []
