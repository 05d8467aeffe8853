"""Each checker finds what was done to a good history by hand, and says nothing about a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import HEAD_BYTES, History, body_of, uid_of
from qa.checkers.end import CHECKERS, check_history, violations_of


class Recorded(History):
    """A history with a clock that goes on by a second with each look."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(self._tick)

    def _tick(self) -> float:
        self.now += 1
        return self.now

    def send(self, uid: int, **options: object) -> int:
        op = self.sent("p", "q", uid, **options)  # type: ignore[arg-type]
        self.send_ok(op)
        return op

    def deliver(self, uid: int, sequence: int, *, again: bool = False, consumer: str = "c1") -> int:
        return self.delivered(
            "c",
            consumer,
            "q",
            body_of(uid, 50),
            sequence=sequence,
            redelivered=again,
            delivery_count=1 + again,
        )

    def ack(self, *deliveries: int) -> int:
        op = self.settling(deliveries)
        self.settle_ok(op)
        return op


def good() -> Recorded:
    """Six messages: acknowledged, redelivered, refused and unknown ones, one left, and a barrier."""
    history = Recorded()
    history.send(1, duplicate_id="one")
    again = history.sent("p", "q", 1, duplicate_id="one")
    history.send_failed(again, "unknown")
    history.send(2)
    refused = history.sent("p", "q", 3)
    history.send_failed(refused, "not_done")
    unknown = history.sent("p", "q", 4)
    history.send_failed(unknown, "unknown")
    history.sent("p", "q", 5)
    history.send(6)
    history.ack(history.deliver(1, 1))
    history.deliver(2, 2)
    history.note("kill broker")
    history.healed()
    history.ack(history.deliver(2, 2, again=True), history.deliver(5, 4))
    history.send(99, barrier=True)
    history.ack(history.deliver(99, 7))
    history.final.counted("q", {"added": 5, "acknowledged": 4, "ready": 1, "delivering": 0})
    history.final.recounted("q", [(6, 6)])
    history.final.left("tasks", 0)
    history.final.recovered("disk at 7", "once", [(6, 6)])
    history.final.recovered("disk at 7", "twice", [(6, 6)])
    return history


def test_a_good_history_passes_every_checker() -> None:
    assert violations_of(good()) == []
    check_history(good())


def lose_a_confirmed_message(history: Recorded) -> None:
    history.final.remaining["q"].remove((6, 6))


def lose_a_message_that_was_handed_out_only(history: Recorded) -> None:
    history.send(7)
    history.deliver(7, 8)


def lose_a_message_whose_ack_was_refused(history: Recorded) -> None:
    history.send(7)
    op = history.settling([history.deliver(7, 8)])
    history.settle_failed(op, "not_done")


def deliver_what_was_never_sent(history: Recorded) -> None:
    history.deliver(1234, 9)


def deliver_before_it_was_sent(history: Recorded) -> None:
    history.ack(history.deliver(7, 9))
    history.send(7)


def deliver_from_another_queue(history: Recorded) -> None:
    history.delivered("c", "c1", "elsewhere", body_of(2), sequence=1)


def deliver_a_damaged_body(history: Recorded) -> None:
    body = bytearray(body_of(2, 50))
    body[-1] ^= 1
    history.delivered("c", "c1", "q", bytes(body), sequence=9)


def keep_what_was_never_sent(history: Recorded) -> None:
    history.final.remaining["q"].append((1234, 9))


def deliver_what_was_refused(history: Recorded) -> None:
    history.ack(history.deliver(3, 3, again=True))


def apply_a_transaction_by_half(history: Recorded) -> None:
    for uid in (7, 8):
        history.send_failed(history.sent("p", "q", uid, transaction="t"), "unknown")
    history.ack(history.deliver(7, 9))


def keep_what_was_refused(history: Recorded) -> None:
    history.final.remaining["q"].append((3, 9))


def place_a_duplicate_id_twice(history: Recorded) -> None:
    history.ack(history.deliver(1, 9))


def place_another_message_with_the_same_duplicate_id(history: Recorded) -> None:
    history.send(7, duplicate_id="one")
    history.ack(history.deliver(7, 9))


def place_one_send_twice(history: Recorded) -> None:
    history.ack(history.deliver(5, 9))


def come_again_without_a_mark(history: Recorded) -> None:
    history.send(7)
    history.deliver(7, 9)
    history.ack(history.deliver(7, 9))


def come_again_after_a_confirmed_ack(history: Recorded) -> None:
    history.deliver(2, 2, again=True)


def keep_what_was_acknowledged(history: Recorded) -> None:
    history.final.remaining["q"].append((1, 1))


def number_in_another_order_than_sent(history: Recorded) -> None:
    history.send(7)
    history.send(8)
    history.ack(history.deliver(8, 8), history.deliver(7, 9))


def give_a_number_twice(history: Recorded) -> None:
    history.send(7)
    history.ack(history.deliver(7, 7, again=True))


def deliver_in_another_order_than_numbered(history: Recorded) -> None:
    history.send(7)
    history.send(8)
    history.ack(history.deliver(8, 9), history.deliver(7, 8))


def forget_to_count_an_ack(history: Recorded) -> None:
    history.final.statistics["q"]["acknowledged"] -= 1


def count_other_than_the_journal(history: Recorded) -> None:
    history.final.statistics["q"].update(ready=2, acknowledged=3)


def count_below_zero(history: Recorded) -> None:
    history.final.statistics["q"].update(delivering=-1, ready=2)


def refuse_the_barrier(history: Recorded) -> None:
    next(send for send in history.sends.values() if send.barrier).outcome = "unknown"


def take_too_long_for_the_barrier(history: Recorded) -> None:
    next(send for send in history.sends.values() if send.barrier).ended_s = history.healed_s + 10.5  # type: ignore[operator]


def send_no_barrier(history: Recorded) -> None:
    next(send for send in history.sends.values() if send.barrier).barrier = False


def leave_messages_to_a_willing_consumer(history: Recorded) -> None:
    history.expected.drains("q")


def leak_a_task(history: Recorded) -> None:
    history.final.left("tasks", 1)


def confirmed_before_the_partner(history: Recorded) -> None:
    history.partner_s = {}
    op = history.sent("p", "q", 1)
    history.given_to_partner(1)
    history.send_ok(op)
    history.partner_has(1)
    history.ack(history.deliver(1, 1))


def delivered_and_the_partner_never_had_it(history: Recorded) -> None:
    history.partner_s = {}
    history.sent("p", "q", 1)
    history.given_to_partner(1)
    history.ack(history.deliver(1, 1))


def recover_to_something_else_the_second_time(history: Recorded) -> None:
    history.final.recovered("disk at 7", "after a crash at step 3", [])


CORRUPTIONS: list[tuple[Callable[[Recorded], None], str]] = [
    (lose_a_confirmed_message, "Q1"),
    (lose_a_message_that_was_handed_out_only, "Q1"),
    (lose_a_message_whose_ack_was_refused, "Q1"),
    (deliver_what_was_never_sent, "Q2"),
    (deliver_before_it_was_sent, "Q2"),
    (deliver_from_another_queue, "Q2"),
    (deliver_a_damaged_body, "Q2"),
    (keep_what_was_never_sent, "Q2"),
    (deliver_what_was_refused, "Q3"),
    (keep_what_was_refused, "Q3"),
    (apply_a_transaction_by_half, "Q3"),
    (place_a_duplicate_id_twice, "Q4"),
    (place_another_message_with_the_same_duplicate_id, "Q4"),
    (place_one_send_twice, "Q5"),
    (come_again_without_a_mark, "Q5"),
    (come_again_after_a_confirmed_ack, "Q6"),
    (keep_what_was_acknowledged, "Q6"),
    (number_in_another_order_than_sent, "Q7"),
    (give_a_number_twice, "Q7"),
    (deliver_in_another_order_than_numbered, "Q7"),
    (forget_to_count_an_ack, "Q8"),
    (count_other_than_the_journal, "Q8"),
    (count_below_zero, "Q8"),
    (refuse_the_barrier, "Q14"),
    (take_too_long_for_the_barrier, "Q14"),
    (send_no_barrier, "Q14"),
    (leave_messages_to_a_willing_consumer, "Q14"),
    (leak_a_task, "Q14"),
    (recover_to_something_else_the_second_time, "Q15"),
    (confirmed_before_the_partner, "R1"),
    (delivered_and_the_partner_never_had_it, "R1"),
]


@pytest.mark.parametrize(("corrupt", "checker"), CORRUPTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_each_corruption_is_found_by_the_checker_of_its_promise(
    corrupt: Callable[[Recorded], None], checker: str
) -> None:
    history = good()
    corrupt(history)
    found = violations_of(history, [checker])
    assert [violation.checker for violation in found] == [checker] * len(found) != []
    with pytest.raises(HistoryError) as caught:
        check_history(history)
    assert checker in caught.value.checkers


def test_every_checker_has_a_corruption_that_it_alone_finds() -> None:
    alone = set()
    for corrupt, checker in CORRUPTIONS:
        history = good()
        corrupt(history)
        if {violation.checker for violation in violations_of(history)} == {checker}:
            alone.add(checker)
    # The others have histories of their own (``test_checkers_calm.py``, ``test_checkers_mesh.py``).
    assert alone == {checker for checker in CHECKERS if checker.startswith("Q")}


def unknown_send_is_delivered(history: Recorded) -> None:
    history.ack(history.deliver(4, 3, again=True))


def unknown_send_never_comes(history: Recorded) -> None:
    pass


def unknown_ack_takes_effect(history: Recorded) -> None:
    history.send(7)
    op = history.settling([history.deliver(7, 9)])
    history.settle_failed(op, "unknown")


def unknown_ack_takes_no_effect(history: Recorded) -> None:
    unknown_ack_takes_effect(history)
    history.ack(history.deliver(7, 9, again=True))


def an_ack_that_never_ended_takes_effect(history: Recorded) -> None:
    history.send(7)
    history.settling([history.deliver(7, 9)])


def a_repeated_send_without_duplicate_id_stands_twice(history: Recorded) -> None:
    history.send_failed(history.sent("p", "q", 7), "unknown")
    history.send(7)
    history.ack(history.deliver(7, 8), history.deliver(7, 9))


def a_send_that_is_not_durable_is_lost(history: Recorded) -> None:
    history.send(7, durable=False)


def a_message_expires(history: Recorded) -> None:
    history.send(7)
    history.gone("q", 7, "expired")


def the_partner_is_in_time(history: Recorded) -> None:
    history.partner_s = {}
    op = history.sent("p", "q", 101)
    history.given_to_partner(101)
    history.partner_has(101)
    history.send_ok(op)
    history.ack(history.deliver(101, 101))
    # A message that is no record of the journal is not the partner's.
    history.send(102)
    history.ack(history.deliver(102, 102))


def two_consumers_take_turns(history: Recorded) -> None:
    history.send(7)
    history.send(8)
    history.ack(history.deliver(8, 9, consumer="c2"), history.deliver(7, 8, consumer="c1"))


def sends_of_different_producers_cross(history: Recorded) -> None:
    other = history.sent("p", "q", 7, producer="other")
    history.send(8)
    history.send_ok(other)
    history.ack(history.deliver(8, 8), history.deliver(7, 9))


def a_message_of_a_transaction_that_is_nowhere_was_sent_besides(history: Recorded) -> None:
    for uid in (7, 8):
        history.send_failed(history.sent("p", "q", uid, transaction="t"), "unknown")
    for uid in (7, 9):
        history.send_failed(history.sent("p", "q", uid, transaction="u"), "not_done")
    history.send(7)
    history.ack(history.deliver(7, 9))


@pytest.mark.parametrize(
    "change",
    [
        a_message_of_a_transaction_that_is_nowhere_was_sent_besides,
        unknown_send_is_delivered,
        unknown_send_never_comes,
        unknown_ack_takes_effect,
        unknown_ack_takes_no_effect,
        an_ack_that_never_ended_takes_effect,
        a_repeated_send_without_duplicate_id_stands_twice,
        a_send_that_is_not_durable_is_lost,
        a_message_expires,
        two_consumers_take_turns,
        the_partner_is_in_time,
        sends_of_different_producers_cross,
    ],
)
def test_what_is_allowed_is_no_violation(change: Callable[[Recorded], None]) -> None:
    history = good()
    change(history)
    assert violations_of(history, [name for name in CHECKERS if name != "Q8"]) == []


def test_a_body_says_which_message_it_is_and_whether_it_is_intact() -> None:
    for size in (0, HEAD_BYTES, HEAD_BYTES + 1, 1000):
        body = body_of(77, size)
        assert len(body) == max(size, HEAD_BYTES)
        assert uid_of(body) == 77
        for bit in range(0, len(body) * 8, 7):
            flipped = bytearray(body)
            flipped[bit // 8] ^= 1 << bit % 8
            assert uid_of(bytes(flipped)) is None
    assert uid_of(b"") is None
    assert uid_of(body_of(1, 100)[:-1]) is None


def test_a_failure_tells_the_story_of_the_message_concerned() -> None:
    history = good()
    lose_a_confirmed_message(history)
    with pytest.raises(HistoryError) as caught:
        check_history(history)
    text = str(caught.value)
    assert text.startswith("Q1: confirmed message 6 is lost from q: never delivered\n")
    assert "send 7 of 6 by p to q" in text
    assert "kill broker" in text


@pytest.mark.parametrize(("counted", "found"), [(2, 0), (1, 1), (0, 1)])
def test_no_more_may_be_lost_of_a_queue_that_drops_than_was_counted(counted: int, found: int) -> None:
    history = Recorded()
    history.expected.drops("q")
    for uid in (1, 2, 3):
        history.send(uid)
    history.ack(history.deliver(3, 1))
    history.final.recounted("q", [])
    history.final.dropped_from("q", counted)
    assert len(violations_of(history, ["Q1"])) == found


def test_what_was_delivered_and_is_gone_was_not_dropped() -> None:
    history = Recorded()
    history.expected.drops("q")
    history.send(1)
    history.deliver(1, 1)
    history.final.recounted("q", [])
    history.final.dropped_from("q", 5)
    assert [violation.uid for violation in violations_of(history, ["Q1"])] == [1]
