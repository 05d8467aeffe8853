"""The simulated mesh judges what its nodes say of stuck messages, and finds what is wrong with that."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.abc import HeldMessages
from meshq.cluster import _stuck_plan
from meshq.cluster._stuck_plan import Cause, cause_of
from tests.qa.planted import brief_seed, first_report


@pytest.mark.slow
def test_a_mesh_finds_nothing_that_is_not_so_and_reaches_causes() -> None:
    report = brief_seed(3, "mesh")
    assert report.passed, report.line
    assert sum(number for kind, number in report.counters.items() if kind.startswith("seen.stuck_")) > 0


def caught(monkeypatch: pytest.MonkeyPatch, bug: object, what: str) -> None:
    monkeypatch.setattr(_stuck_plan, "cause_of", bug)
    first_report("mesh", "Q14", what=what)


@pytest.mark.slow
def test_a_cause_that_is_not_so_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(held: HeldMessages, *about: Any) -> Cause | None:
        found = cause_of(held, *about)
        return Cause("paused", "it is not") if found is not None else None

    caught(monkeypatch, wrong, "said to be stuck by paused")


@pytest.mark.slow
def test_what_nobody_wants_and_is_said_to_be_stuck_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(held: HeldMessages, *about: Any) -> Cause | None:
        return cause_of(held, *about) or Cause("filter", "a guess")

    caught(monkeypatch, always, "said to be stuck by filter")
