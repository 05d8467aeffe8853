"""The model of the protocol of message groups: what it plays is played again by its seed, and it finds planted bugs."""

from __future__ import annotations

import pytest

from meshq.cluster.grouping import Grouping
from meshq.cluster.grouping._arbiter_machine import ArbiterMachine
from qa.seeds import one_seed
from tests.qa.planted import first_report


@pytest.mark.parametrize("seed", [0, 16, 34])
def test_groups_keep_all_promises(seed: int) -> None:
    report = one_seed(seed, "grouping")
    assert report.passed, report.line
    assert report.confirmed > 20 and report.counters["seen.letters"] > 0


def test_a_seed_plays_the_same_again() -> None:
    assert one_seed(34, "grouping").trace == one_seed(34, "grouping").trace


def test_a_pin_that_is_given_before_all_were_heard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArbiterMachine, "_may_give", lambda self, name: True)
    first_report("grouping", "CG2")


def test_a_holder_that_does_not_yield_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grouping, "_yield", lambda self, letter, answers: False)
    # Its arbiter gives no more pins.
    first_report("grouping", "progress")
