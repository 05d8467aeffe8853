"""The cause of messages that do not move, decided from what stands at the front of a queue."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.abc import HeldMessages, RemoteDemand
from meshq.cluster._stuck_plan import CAUSES, REPEAT_S, Cause, Elsewhere, StuckPlan, cause_of

T = 10.0


def held(kind: str = "ready", **about: Any) -> HeldMessages:
    known = {"queue": "q", "address": "q", "kind": kind, "mark": 1, "messages": 3, "redistribution_delay": 0.0}
    return HeldMessages(**{**known, **about})


def there(**about: Any) -> RemoteDemand:
    known = {"node_id": "b", "node_name": "b", "consumers": 1, "wants": True, "mode": "on_demand", "gone": ""}
    return RemoteDemand(**{**known, "room": True, **about})


FULL: dict[str, Any] = {"consumers": 1, "wants": True, "credit": False}

CASES: dict[str, tuple[HeldMessages, str | None]] = {
    "a full window": (held(**FULL), "flow_control"),
    "a consumer that may get it now": (held(consumers=1, wants=True, credit=True), None),
    "a filter here": (held(consumers=1, wants=False, credit=False), "filter"),
    "a filter that was not asked": (held(consumers=1, wants=None, credit=False), None),
    "nobody anywhere": (held(), None),
    "a paused queue": (held(paused=True, **FULL), "paused"),
    "a paused queue that nobody wants": (held(paused=True), None),
    "balancing off": (held(remote=(there(mode="off"),)), "balancing_off"),
    "strict": (held(remote=(there(mode="strict"),)), "no_redistribution"),
    "no delay set": (held(remote=(there(),), redistribution_delay=None), "no_redistribution"),
    "a topic": (held(remote=(there(),), keeps="it is a topic"), "no_redistribution"),
    "a delay that goes on": (held(remote=(there(),), redistribution_delay=99.0), "delay"),
    "a filter there": (held(remote=(there(wants=False), there(node_id="c", wants=False))), "filter"),
    "a filter there that was not asked": (held(remote=(there(wants=None),)), None),
    "no room there": (held(remote=(there(room=False),)), "flow_control"),
    "room at another node": (held(remote=(there(room=False), there(node_id="c"))), None),
    "nodes that are gone": (held(remote=(there(gone="away"),)), "node_gone"),
    "one node that is not gone": (held(remote=(there(gone="left"), there(node_id="c", wants=False))), "filter"),
    "unmatched here and wanted there": (
        held(consumers=1, wants=False, credit=False, remote=(there(room=False),)),
        "flow_control",
    ),
    "unmatched here and kept": (
        held(consumers=1, wants=False, credit=False, remote=(there(),), keeps="only with redistribute_unmatched"),
        "filter",
    ),
    "prepared": (held("prepared", xid=b"x", consumers=1), "prepared"),
    "prepared, and nobody wants it": (held("prepared", xid=b"x"), None),
    "handed back": (held("delayed", consumers=1), "delay"),
    "handed back, wanted elsewhere": (held("delayed", remote=(there(),)), "delay"),
    "a node that is away": (held("forwarding", node_id="b", gone="away", sent=1), "node_gone"),
    "a node that does not store": (held("forwarding", node_id="b", sent=1), "flow_control"),
    "a link that begins": (held("forwarding", node_id="b"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_each_cause_is_told_from_the_others(name: str) -> None:
    facts, cause = CASES[name]
    found = cause_of(facts, demanded_s=50.0)
    assert (found.name if found is not None else None) == cause
    assert found is None or (found.name in CAUSES and found.why)


def test_consumers_that_are_not_known_here_are_behind_too_many_links_or_not_bound() -> None:
    found = [
        cause_of(held(), 0.0, elsewhere)
        for elsewhere in (Elsewhere(), Elsewhere(beyond=("c",)), Elsewhere(beyond=("c",), unbound=("b",)))
    ]
    assert [(one.name, one.node_ids) if one is not None else None for one in found] == [
        None,
        ("hop_limit", ("c",)),
        ("missing_binding", ("b",)),
    ]


def test_messages_are_stuck_when_the_first_has_stood_for_so_long_and_not_before() -> None:
    plan = StuckPlan(T)
    assert not plan.see("q", [held(**FULL)], 0.0) and not plan.see("q", [held(**FULL)], T - 0.1)
    (stuck,) = plan.see("q", [held(**FULL)], T)
    assert (stuck.cause, stuck.seconds, stuck.messages) == ("flow_control", T, 3)
    assert plan.stuck() == [stuck]


def test_a_first_message_that_has_moved_begins_anew() -> None:
    plan = StuckPlan(T)
    plan.see("q", [held(**FULL)], 0.0)
    assert not plan.see("q", [held(mark=2, **FULL)], T)
    assert plan.see("q", [held(mark=2, **FULL)], 2 * T)


def test_what_lasts_is_told_once_a_minute_for_each_cause() -> None:
    plan = StuckPlan(T)
    told = []
    for now in range(0, 200, 5):
        facts = held(**FULL) if now < 100 else held(consumers=1, wants=False, credit=False)
        told += [(now, one.cause) for one in plan.see("q", [facts], float(now))]
    assert told == [(10, "flow_control"), (70, "flow_control"), (100, "filter"), (160, "filter")]
    assert REPEAT_S == 60.0


def test_a_cause_that_is_over_is_not_shown_any_more() -> None:
    plan = StuckPlan(T)
    plan.see("q", [held(**FULL)], 0.0)
    assert plan.see("q", [held(**FULL)], T)
    plan.see("q", [held(consumers=1, wants=True, credit=True)], T + 1)
    assert plan.stuck() == []
    plan.see("q", [held(**FULL)], T + 2)
    assert plan.stuck() != []
    plan.see("q", [], T + 3)
    assert plan.stuck() == []


def test_a_queue_in_which_nothing_waits_is_forgotten() -> None:
    plan = StuckPlan(T)
    plan.see("q", [held(**FULL)], 0.0)
    plan.retain([])
    assert not plan.see("q", [held(**FULL)], T)


def test_the_delay_of_redistribution_counts_from_the_first_look_at_which_only_others_want_it() -> None:
    plan, waits = StuckPlan(T), {"remote": (there(),), "redistribution_delay": 30.0}
    plan.see("q", [held(redistribution_delay=30.0)], 0.0)
    assert [one.cause for one in plan.see("q", [held(**waits)], 20.0)] == ["delay"]
    plan.see("q", [held(**waits)], 50.0)
    assert plan.stuck() == []


def test_other_nodes_are_asked_only_about_what_stands_and_nobody_known_wants() -> None:
    plan = StuckPlan(T)
    plan.see("q", [held()], 0.0)
    assert not plan.to_ask([held()], 0.0) and not plan.to_ask([held()], T - 0.1)
    plan.see("q", [held()], T)
    assert plan.to_ask([held()], T) and not plan.to_ask([held(**FULL)], T)
    assert not plan.to_ask([held(remote=(there(mode="off"),))], T)
    plan.asking("q", T)
    assert not plan.to_ask([held()], T + 1)
    plan.answered("q", Elsewhere(beyond=("c",)), T + 1)
    assert [one.cause for one in plan.see("q", [held()], T + 2)] == ["hop_limit"]
    assert plan.to_ask([held()], 2 * T + 1)
    # An answer of long ago says nothing.
    plan.see("q", [held()], 4 * T)
    assert plan.stuck() == []


def test_a_group_that_is_not_consumed_here_waits_for_what_keeps_it() -> None:
    found, away = held(group="red", consumers=1, wants=True, credit=True), Cause("group", "a node is away", ("c",))
    assert cause_of(found, 0.0, None, away) == away
    assert cause_of(found, 0.0) is None
    assert cause_of(held(group="red"), 0.0, None, away) is None
    assert cause_of(held(group="red", paused=True, **FULL), 0.0, None, away) == Cause("paused", "the queue is paused")
    plan = StuckPlan(T)
    assert plan.see("q", [found], 0.0, away) == []
    (stuck,) = plan.see("q", [found], T, away)
    assert (stuck.cause, stuck.node_ids, stuck.messages) == ("group", ("c",), 3)
