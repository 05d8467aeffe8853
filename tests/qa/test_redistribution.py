"""The simulated mesh with redistributors: a run of its own, and bugs planted in redistribution that it catches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from meshq.abc import StrandedQueue
from meshq.broker.ingress._redistribution import Redistribution
from meshq.cluster._redistribution_plan import RedistributionPlan
from tests.qa.planted import brief_seed, first_report

SEED = 3

movable, place = Redistribution.movable, Redistribution.place


def undelivered(self: Redistribution, queue: Any, view: Any, run: Any, rows: Sequence[int]) -> Any:
    """Move nothing that was delivered before."""
    return movable(self, queue, view, run, [row for row in rows if not view.deliveries(row)])


def caught(what: str) -> None:
    """See that the checker of leftovers says so."""
    first_report("redistribution", "Q14", what=what)


@pytest.mark.slow
def test_a_mesh_with_redistributors_keeps_every_promise_in_a_run_of_its_own() -> None:
    report = brief_seed(SEED, "redistribution")
    assert report.passed, report.line
    assert report.counters["seen.redistributed"] > 240
    assert report.line.endswith(" -- python -m qa.simulate --seed 3 --redistribution")


@pytest.mark.slow
def test_a_record_that_moves_messages_and_does_not_remove_them_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redistribution, "place", lambda self, moved, queue, gone: place(self, moved, queue, ()))
    # So that there are many such parts.
    monkeypatch.setattr(Redistribution, "movable", undelivered)
    # A message is there twice; which checker sees it first depends on which of the two is delivered.
    first_report("redistribution", "Q4", "Q5")


@pytest.mark.slow
def test_messages_that_move_away_from_a_consumer_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redistribution, "keeps", lambda self, queue: queue.settings.redistribution_delay is None)
    caught("moved away from a consumer")


@pytest.mark.slow
def test_messages_that_go_without_their_delivery_counts_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.broker.settlement._message_mover.former_counts", lambda queue, span: None)
    report = first_report("redistribution", "Q14", what="whose delivery is forgotten", to_the_end=True)
    # It comes once more from another place, and nothing says that it did before.
    assert {"Q4", "Q5"} <= set(report.caught_by)


@pytest.mark.slow
def test_messages_that_stay_because_they_were_delivered_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redistribution, "movable", undelivered)
    caught("stranded messages that go, too few or too many")


@pytest.mark.slow
def test_messages_that_move_out_of_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_other_first(self: Redistribution, queue: Any, view: Any, run: Any, rows: Sequence[int]) -> Any:
        found = movable(self, queue, view, run, rows)
        return found and (found[1::2] or found)

    monkeypatch.setattr(Redistribution, "movable", every_other_first)
    report = first_report("redistribution", "Q7", to_the_end=True)
    assert "Q14" in report.caught_by


@pytest.mark.slow
@pytest.mark.parametrize("here", [(), None], ids=["all go", "none goes"])
def test_messages_that_go_or_stay_without_regard_to_the_filters_of_consumers_here_are_caught(
    monkeypatch: pytest.MonkeyPatch, here: Any
) -> None:
    monkeypatch.setattr("meshq.broker.ingress._redistribution.filters_here", lambda queue: here)
    caught("stranded messages")


@pytest.mark.slow
def test_messages_that_move_before_the_delay_is_over_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    see = RedistributionPlan.see

    def hasty(self: RedistributionPlan, name: str, state: StrandedQueue | None, now: float) -> bool:
        return see(self, name, state and attrs.evolve(state, delay=0.0), now)

    monkeypatch.setattr(RedistributionPlan, "see", hasty)
    caught("moved after")


@pytest.mark.slow
def test_a_state_that_is_forgotten_because_a_consumer_was_there_before_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see = RedistributionPlan.see

    def once(self: RedistributionPlan, name: str, state: StrandedQueue | None, now: float) -> bool:
        """Look at each queue that had messages when it was seen first, and never again."""
        return see(self, name, state, now) if name not in self._waiting else False

    monkeypatch.setattr(RedistributionPlan, "see", once)
    caught("stranded messages that go, too few or too many")
