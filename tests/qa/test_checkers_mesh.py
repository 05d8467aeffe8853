"""The checkers of a mesh: each passes a good history, and finds what it is in charge of."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of
from qa.checkers.end import violations_of
from qa.checkers.mesh import (
    b1_no_dead_letter_by_refusal,
    b2_carried_all_the_way,
    m1_nothing_for_who_is_gone,
)
from qa.mesh.bridges import MeshBridges


def bridged(hops: int = 4, duplicate_id: str | None = "d1@a") -> History:
    """Message 1 was sent into a ring at a, came back there, and was acknowledged."""
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.expected.spared["q@a.dead"] = "its target says no"
    history.send_ok(history.sent("s", "q", 1, duplicate_id="d1@a", node="a"))
    number = history.delivered("r", "r", "q", body_of(1), sequence=5, node="a")
    history.carried(number, hops, 4, duplicate_id)
    history.settle_ok(history.settling([number]))
    return history


def test_a_place_to_which_nothing_may_come_is_empty() -> None:
    history = bridged()
    history.final.recounted("q@a.dead", [])
    assert list(b1_no_dead_letter_by_refusal(history)) == []
    history.final.recounted("q@a.dead", [(1, 3)])
    assert [violation.uid for violation in b1_no_dead_letter_by_refusal(history)] == [1]
    history.final.recounted("q@a.dead", [])
    history.delivered("r", "r", "q", body_of(2), sequence=5, node="a.dead")
    assert [violation.uid for violation in b1_no_dead_letter_by_refusal(history)] == [2]


def test_what_comes_out_of_bridges_has_made_all_its_hops_and_has_its_senders_id() -> None:
    assert list(b2_carried_all_the_way(bridged())) == []
    for wrong in (bridged(hops=3), bridged(hops=5), bridged(duplicate_id=None), bridged(duplicate_id="d1@b")):
        assert [violation.uid for violation in b2_carried_all_the_way(wrong)] == [1]


def test_only_strict_deals_to_a_node_that_is_gone_and_only_while_it_is_away() -> None:
    for mode, state, number, kept in (
        ("on_demand", "away", 0, True),
        ("on_demand", "away", 1, False),
        ("on_demand", "left", 1, False),
        ("strict", "away", 1, True),
        ("strict", "away", 0, False),
        ("strict", "left", 0, True),
        ("strict", "left", 1, False),
        ("strict", "down", 1, False),
        ("on_demand", "", 0, False),
        ("strict", "connecting", 0, False),
    ):
        history = bridged()
        history.dealt("a", mode, state, number)
        assert (list(m1_nothing_for_who_is_gone(history)) == []) is kept, (mode, state, number)


def given_back(doubted: bool) -> History:
    """Message 1 waited at a for c, which is gone, and was given back; c had stored it all the same."""
    history = History(lambda: 0.0)
    history.send_ok(history.sent("s", "q", 1, duplicate_id="d1", node="a"))
    history.final.recounted("q@c", [(1, 8)])
    history.final.recounted("q@b", [(1, 3)])
    if doubted:
        history.expected.doubtful("c")
    return history


def test_what_was_given_back_may_stand_once_more_on_the_node_that_is_gone_and_only_there() -> None:
    assert {violation.checker for violation in violations_of(given_back(False))} == {"Q4", "Q5"}
    assert violations_of(given_back(True)) == []
    thrice = given_back(True)
    thrice.final.recounted("q@a", [(1, 5)])
    assert {violation.checker for violation in violations_of(thrice)} == {"Q4", "Q5"}


def moved_on(*, marked: bool = True, ack: str | None = None, kept: bool = False, redistributed: bool = True) -> History:
    """Message 1 was delivered at a, went from there to b, and was delivered and acknowledged there.

    ``marked``: as redelivered; ``ack``: the outcome of an acknowledgement at a; ``kept``: it is still there.
    """
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    if redistributed:
        history.expected.redistributes("q")
    history.send_ok(history.sent("s", "q", 1, duplicate_id="d1", node="a"))
    first = history.delivered("r", "r", "q", body_of(1), sequence=5, node="a")
    if ack is not None:
        settling = history.settling([first])
        if ack == "done":
            history.settle_ok(settling)
    again = {"redelivered": marked, "delivery_count": 2 if marked else 1}
    second = history.delivered("t", "t", "q", body_of(1), sequence=8, node="b", **again)
    history.settle_ok(history.settling([second]))
    if kept:
        history.final.recounted("q@a", [(1, 5)])
    return history


def test_while_a_node_hands_over_only_messages_of_groups_go_on_by_themselves() -> None:
    for queue, found in (("other", {"Q4", "Q5"}), ("q", set())):
        history = moved_on()
        history.expected.hands_over("c", "a")
        history.expected.pins_groups(queue)
        assert {violation.checker for violation in violations_of(history)} == found
    acknowledged = moved_on(ack="done")
    acknowledged.expected.hands_over("c", "a")
    acknowledged.expected.pins_groups("q")
    assert {violation.checker for violation in violations_of(acknowledged)} == {"Q4", "Q5"}


def test_what_was_delivered_and_not_settled_may_go_on_to_another_node_with_its_count() -> None:
    assert violations_of(moved_on()) == []
    assert violations_of(moved_on(ack="unknown")) == []


@pytest.mark.parametrize("about", [{"marked": False}, {"ack": "done"}, {"kept": True}, {"redistributed": False}])
def test_a_message_that_stands_at_two_nodes_otherwise_is_there_twice(about: dict[str, Any]) -> None:
    assert {"Q4", "Q5"} <= {violation.checker for violation in violations_of(moved_on(**about))}


def test_what_is_given_back_stands_behind_what_was_sent_later() -> None:
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    for uid in (1, 2):
        history.send_ok(history.sent("s", "q", uid, node="a"))
    history.final.recounted("q@a", [(2, 5), (1, 6)])
    assert {violation.checker for violation in violations_of(history)} == {"Q7"}
    history.expected.overtaken("q@a", 5)
    assert violations_of(history) == []
    history.expected.overtaken("q@a", 6)
    assert {violation.checker for violation in violations_of(history)} == {"Q7"}


def carried(
    *,
    stands: str = "ring@b ring@b",
    parted: str = "ring@b",
    start: str = "b",
    ids: bool = False,
) -> History:
    """Message 1 went from b over a bridge to c, which is gone for good, and came back from there; the acknowledgement
    of its first place was lost.  ``stands``: each of its places, the numbers rise.  ``start``: a node that has begun
    anew since then."""
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.expected.odd["ring"] = None
    history.restarted("b")
    history.send_ok(history.sent("s", "ring", 1, node="b", duplicate_id="d1" if ids else None))
    history.ended("c")
    if start:
        history.restarted(start)
    for number, place in enumerate(stands.split(), 1):
        history.final.recounted(place, [*history.final.remaining.get(place, ()), (1, number)])
    history.expected.parts(parted)
    return history


def receive(history: History, number: int, *, acknowledged: bool = True) -> None:
    """Message 1 is received at b; what is acknowledged is not there any more."""
    delivery = history.delivered("r", "r", "ring", body_of(1), sequence=number, node="b")
    if acknowledged:
        history.settle_ok(history.settling([delivery]))
        history.final.recounted(
            "ring@b", [(1, left) for _, left in history.final.remaining["ring@b"] if left != number]
        )


@pytest.mark.parametrize("ids", [False, True])
def test_what_was_carried_to_a_node_that_is_gone_may_stay_at_its_source_once_more(ids: bool) -> None:
    assert violations_of(carried(ids=ids)) == []
    came_back = carried(ids=ids)
    receive(came_back, 2)
    assert violations_of(came_back) == []
    elsewhere = carried(ids=ids, stands="ring@b ring@b ring@a")
    assert violations_of(elsewhere) == []


@pytest.mark.parametrize("ids", [False, True])
def test_what_may_have_had_no_answer_may_stay_at_its_source_once_more(ids: bool) -> None:
    assert violations_of(carried(ids=ids, start="")) == []
    for stands in ("ring@b ring@b ring@b", "ring@a ring@a", "ring@b ring@a ring@a"):
        assert violations_of(carried(ids=ids, start="", stands=stands))
    received = carried(ids=ids, start="")
    receive(received, 1)
    assert violations_of(received)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize(
    ("about", "how"),
    [
        # A third stand, here or at the node behind.
        ({"stands": "ring@b ring@b ring@b"}, None),
        ({"stands": "ring@b ring@b ring@a ring@a"}, None),
        # Once there, and twice somewhere else.
        ({"stands": "ring@b ring@a ring@a"}, None),
        # At a place whose bridge leads to a node that is there, or to none.
        ({"stands": "ring@a ring@a"}, None),
        ({"parted": "ring@a"}, None),
        ({"parted": "ring"}, None),
        # The first place gave it out: it did not wait there for the node that is gone.
        ({}, "received"),
        ({}, "acknowledged"),
    ],
)
def test_nothing_else_may_stand_there_twice(about: dict[str, Any], how: str | None, ids: bool) -> None:
    history = carried(**about, ids=ids)
    if how is not None:
        receive(history, 1, acknowledged=how == "acknowledged")
    assert {violation.checker for violation in violations_of(history)} == ({"Q4", "Q5"} if ids else {"Q5"})


@pytest.mark.parametrize(
    ("durable", "started", "stands", "kept"),
    [
        (False, "a", 2, True),
        # Its id is remembered for good, or its node has forgotten it once only, or not since it was sent.
        (True, "a", 2, False),
        (False, "a", 3, False),
        (False, "b", 2, False),
        (False, "", 2, False),
    ],
)
def test_an_id_that_is_not_durable_is_forgotten_with_its_node(
    durable: bool, started: str, stands: int, kept: bool
) -> None:
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.restarted("a")
    history.send_ok(history.sent("s", "q", 1, node="a", duplicate_id="d1", durable=durable))
    if started:
        history.restarted(started)
    history.final.recounted("q@a", [(1, number + 1) for number in range(stands)])
    assert [found.checker for found in violations_of(history) if found.checker == "Q4"] == ([] if kept else ["Q4"])


@pytest.mark.parametrize(
    ("sent_to", "answered", "seen", "kept"),
    [
        # The node that it was sent to had not answered, or had; it stands elsewhere.
        ("b", False, False, True),
        ("b", True, False, False),
        # It was there both times before its node began anew.
        ("a", True, False, True),
        ("a", True, True, False),
        ("a", False, True, False),
    ],
)
def test_a_start_excuses_what_comes_after_it_only(sent_to: str, answered: bool, seen: bool, kept: bool) -> None:
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    op = history.sent("s", "q", 1, node=sent_to, duplicate_id="d1", durable=False)
    if answered:
        history.send_ok(op)
    if not seen:
        history.restarted(sent_to)
    for sequence in (1, 2):
        numbers = [history.delivered("r", "r", "q", body_of(1), sequence=sequence, node="a", stream=f"r{sequence}")]
        history.settle_ok(history.settling(numbers))
    if seen:
        history.restarted(sent_to)
    if not answered:
        history.send_failed(op, "unknown")
    assert [found.checker for found in violations_of(history) if found.checker == "Q4"] == ([] if kept else ["Q4"])


def test_in_a_ring_the_source_of_a_node_that_is_gone_is_the_one_before_it() -> None:
    names = ("a", "b", "c")
    seen = set()
    for seed in range(100):
        bridges = MeshBridges(Swarm(seed), names)
        for node in names:
            history = History(lambda: 0.0)
            bridges.parted(history, node)
            sources = [name for name in names for way in bridges.ways(name) if way.there == node and way.hops]
            assert list(history.expected.parted) == [f"ring@{it}" for it in (*sources, *(node for _ in sources))]
            seen.add(len(sources))
    assert seen == {0, 1}


@pytest.mark.parametrize(
    ("starts", "twice", "found"),
    [(1, 2, []), (2, 4, []), (1, 3, ["B3"]), (2, 5, ["B3"]), (0, 1, ["Q4", "B3"])],
)
def test_over_a_bridge_comes_once_more_what_may_have_been_under_way(starts: int, twice: int, found: list[str]) -> None:
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.expected.odd["q"] = None
    history.expected.forgetful["q"] = ("a", 2)
    history.restarted("a")
    for uid in range(10):
        history.send_ok(history.sent("s", "q", uid, node="a", duplicate_id=f"d{uid}"))
    for _ in range(starts):
        history.restarted("a")
    history.restarted("b")
    history.final.recounted("q@a", [(uid, uid + 1) for uid in range(10)])
    history.final.recounted("q@b", [(uid, uid + 1) for uid in range(10)] + [(uid, uid + 11) for uid in range(twice)])
    checkers = [violation.checker for violation in violations_of(history)]
    assert [name for name in checkers if name != "Q5"] == found


HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("ttl_s", "offsets", "kept"),
    [
        # It had expired by itself, or when the clock was put forward, and lives again when that is put back.
        (2.0, (0.0, 0.0, -HOUR_S), True),
        (60.0, (0.0, HOUR_S, 0.0), True),
        # It has no time to live, or it had not expired.
        (math.inf, (0.0, HOUR_S, -HOUR_S), False),
        (60.0, (0.0, 0.0, -HOUR_S), False),
        # It is still too late for it, or the clock was put back before it expired, or before it was sent.
        (60.0, (0.0, 3 * HOUR_S, HOUR_S), False),
        (60.0, (0.0, -HOUR_S, HOUR_S), False),
        (60.0, (-HOUR_S, 0.0, 0.0), False),
        (2.0, (0.0, 0.0, HOUR_S), False),
    ],
)
def test_what_had_expired_may_come_late_if_the_clock_was_put_back_since(
    ttl_s: float, offsets: tuple[float, float, float], kept: bool
) -> None:
    now = iter(range(1_000))
    history = History(lambda: float(next(now)))
    history.expected.odd["q"] = history.expected.sole["q"] = None
    history.expected.ttl_of = lambda uid: ttl_s if uid == 1 else math.inf
    before, meanwhile, later = offsets
    history.clock_set("", before)
    for uid in (1, 2):
        history.send_ok(history.sent("s", "q", uid))
    history.clock_set("", meanwhile)
    for uid in (2, 1):
        if uid == 1:
            history.clock_set("", later)
        history.settle_ok(history.settling([history.delivered("r", "r", "q", body_of(uid), sequence=uid)]))
    assert [found.checker for found in violations_of(history)] == ([] if kept else ["Q7"])
