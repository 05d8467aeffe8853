"""The table of Pythons on the page of results is drawn from the file of the runs."""

from __future__ import annotations

import json

import pytest
from tools import run_on_debian


def test_the_table_of_pythons_is_not_stale() -> None:
    platforms = json.loads(run_on_debian.RESULT.read_text(encoding="utf-8"))["platforms"]
    assert platforms
    before = run_on_debian.PAGE.read_text(encoding="utf-8")
    assert run_on_debian.page(before, platforms) == before
    platforms[0]["passed"] += 1
    assert run_on_debian.page(before, platforms) != before


@pytest.mark.parametrize(("command", "arguments"), [("python x --release sid", ""), ("python x -- -k life", "-k life")])
def test_a_row_says_what_pytest_was_given(command: str, arguments: str) -> None:
    assert run_on_debian.arguments_of({"command": command}) == arguments
