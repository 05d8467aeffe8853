"""What the checkers say of order, of what was dispatched when, of restarts and of stores that were refused."""

from __future__ import annotations

import pytest

from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import body_of
from qa.checkers.end import check_history, violations_of
from tests.qa.test_checkers import Recorded, good


def hand_out(history: Recorded, uid: int, sequence: int, stream: str = "c1#1", **options: object) -> int:
    """A delivery in a stream, of a consumer that may hold two."""
    given: dict[str, object] = {"redelivered": False, "window": 2, "stream": stream, **options}
    count = 2 if given["redelivered"] else 1
    body = body_of(uid, 50)
    return history.delivered("c", stream[:2], "q", body, sequence=sequence, delivery_count=count, **given)  # type: ignore[arg-type]


def send_some(history: Recorded, *uids: int) -> None:
    for uid in uids:
        history.send(uid)


def test_what_was_confirmed_before_another_was_sent_has_the_lower_number_whoever_sent_it() -> None:
    history = good()
    history.send(7, producer="one")
    history.send(8, producer="other")
    history.ack(history.deliver(8, 8), history.deliver(7, 9))
    assert [str(found) for found in violations_of(history)] == [
        "Q7: q has message 8 before message 7, confirmed before 8 was sent"
    ]


def test_a_queue_with_one_consumer_at_a_time_is_in_order_over_all_of_them() -> None:
    history = good()
    send_some(history, 7, 8)
    history.ack(hand_out(history, 8, 9, "c2#1"))
    history.ack(hand_out(history, 7, 8, "c3#1"))
    assert violations_of(history) == []
    history.expected.sole["q"] = None
    assert [str(found) for found in violations_of(history)] == ["Q7: c3 got 8 after 9 from q"]


def returned(again_after: int) -> Recorded:
    """A message that is given back and comes again after so many others."""
    history = good()
    history.expected.sole["q"] = None
    others = list(range(8, 8 + again_after))
    send_some(history, 7, *others)
    history.settling([hand_out(history, 7, 8)], "nack")
    for place, uid in enumerate(others, 9):
        history.ack(hand_out(history, uid, place))
    history.ack(hand_out(history, 7, 8, redelivered=True))
    return history


def test_what_is_given_back_comes_again_before_more_than_a_window_of_what_stands_behind_it() -> None:
    assert violations_of(returned(2)) == []
    assert [str(found) for found in violations_of(returned(3))] == [
        "Q7: c1#1 gave 8 back and got more than its window from behind it first"
    ]


@pytest.mark.parametrize("change", ["another session", "several consumers", "never given back"])
def test_order_after_a_return_is_not_judged(change: str) -> None:
    history = returned(3)
    if change == "several consumers":
        history.expected.sole.clear()
    for delivery in history.deliveries:
        if change == "another session" and delivery.redelivered:
            delivery.stream = "c1#2"
    for settlement in history.settlements.values():
        if settlement.kind == "nack":
            if change == "never given back":
                settlement.outcome = "not_done"
            elif change == "another session":
                settlement.deliveries[0].stream = "c1#0"
    assert [found.checker for found in violations_of(history)] == []


def test_what_a_dead_session_had_been_granted_may_be_handed_out_when_others_have_consumed_it() -> None:
    history = good()
    history.send(7)
    history.ack(hand_out(history, 7, 9, "c1#1", since_s=history.now))
    stale = hand_out(history, 7, 9, "c2#1", since_s=0.0)
    assert violations_of(history) == []
    # Unless its session was alive afterwards, as a confirmed settlement shows.
    history.ack(stale)
    assert {found.checker for found in violations_of(history)} == {"Q5", "Q6"}


@pytest.mark.parametrize("stream", ["c2#2", "c1#1"])
def test_what_a_later_session_or_the_same_one_is_granted_again_is_judged(stream: str) -> None:
    history = good()
    history.send(7)
    history.ack(hand_out(history, 7, 9, "c1#1", since_s=1.0))
    hand_out(history, 7, 9, stream, since_s=history.now + 0.5 if stream == "c2#2" else 1.0)
    assert {found.checker for found in violations_of(history)} == {"Q5", "Q6"}


def test_a_message_that_is_not_durable_may_be_sent_again_by_its_client_after_each_restart() -> None:
    history = good()
    history.send(7, durable=False)
    history.ack(history.deliver(7, 8), history.deliver(7, 9))
    assert [found.checker for found in violations_of(history)] == ["Q5"]
    history.restarted()
    assert violations_of(history) == []


def test_a_store_that_is_refused_although_nothing_was_changed_has_lost_what_was_in_it() -> None:
    history = good()
    history.refused("segment 3 is damaged")
    with pytest.raises(HistoryError, match=r"^Q1: the store is intact and was refused: segment 3 is damaged"):
        check_history(history)


@pytest.mark.parametrize("at", ["a", "b"])
@pytest.mark.parametrize(
    ("durable", "restarted", "fine"), [(False, "a", True), (False, "b", False), (True, "a", False)]
)
def test_what_was_lost_with_its_node_and_dealt_anew_has_no_order_there_or_elsewhere(
    durable: bool, restarted: str, fine: bool, at: str
) -> None:
    history = good()
    sends = [history.sent("p", "q", uid, producer="pair", durable=durable, node="a") for uid in (7, 8)]
    history.delivered("c", "c1", "q", body_of(8, 50), sequence=1, node=at)
    history.restarted(restarted)
    for op in sends:
        history.send_ok(op)
    history.delivered("c", "c1", "q", body_of(7, 50), sequence=2, node=at)
    found = [str(one) for one in violations_of(history, ("Q7",))]
    assert found == ([] if fine else [f"Q7: q@{at} has message 8 of pair before message 7, which was sent first"])
