"""Promises of a broker that lives: non-durable messages, times, priorities, groups, windows, memory.

No crash has to be survived for these, so most of them are judged to the moment, in the queues of a stage in which
nothing fails (``_calm``); those that a fault can't excuse are judged in all queues.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from meshq.testing.history._delivery import Violation, is_settled
from meshq.testing.history._history import Delivery, History, Send

#: Times of day are counted in ms, and the clock of a sender is read before its message is on its way.
MOMENT_S: Final = 0.005
#: Within this an expired message must be gone: two clocks are rounded to ms, and to leave a queue waits for no disk.
PROMPT_S: Final = 0.01


def l1_kept_while_it_lives(history: History) -> Iterator[Violation]:
    """L1: a message that is not durable, and was confirmed, is in each of its queues until it is settled, as long as
    no broker is started again after it was sent; the queue is drained in the end.

    What a transaction has sent is not judged, nor what has a time to live.
    """
    delivered = history.deliveries_by_message()
    last_start_s = max((at_s for starts in history.starts.values() for at_s in starts), default=-math.inf)
    for uid, sends in history.sends_by_uid().items():
        if any(send.durable or send.transaction or send.ttl_s < math.inf for send in sends):
            continue
        # When it was stored is not known: what was begun in an earlier life may have been confirmed there.
        confirmed = [send for send in sends if send.outcome == "done" and send.invoked_s > last_start_s]
        if any(send.queues[0] in history.expected.calm for send in sends):
            confirmed = [send for send in sends if send.outcome == "done"]
        for queue in dict.fromkeys(queue for send in confirmed for queue in send.queues):
            message = (queue, uid)
            if (
                queue in history.expected.willing
                and message not in history.removed
                and not is_settled(delivered.get(message, ()))
            ):
                how = "delivered, never settled, gone" if message in delivered else "never delivered"
                yield Violation("L1", f"message {uid}, not durable, is lost from {queue} without a crash: {how}", uid)


def _ends_s(send: Send) -> tuple[float, float]:
    """The earliest and the latest time at which its time to live can be over."""
    return send.invoked_s + send.ttl_s, (math.inf if send.ended_s is None else send.ended_s) + send.ttl_s


def l2_gone_at_its_time(history: History) -> Iterator[Violation]:
    """L2: in a calm queue a message leaves the queue promptly at the end of its time to live, not before, and is
    delivered to no consumer afterwards.

    A delivery counts from when its consumer was opened: what was dispatched in time may be handed out later.
    """
    sends = {uid: found[-1] for uid, found in history.sends_by_uid().items()}
    for delivery in history.deliveries:
        send = sends.get(delivery.uid or -1)
        if send is None or delivery.queue not in history.expected.calm or delivery.since_s is None:
            continue
        late_s = delivery.since_s - _ends_s(send)[1]
        if late_s > MOMENT_S:
            yield Violation("L2", f"message {send.uid} was dispatched {late_s:.3f} s after its time to live", send.uid)
    for queue, messages, asked_s, answered_s, released_s in history.looks:
        # What was counted when it was asked is answered once all that was placed before is on the disk: in between
        # messages expire.
        there = [send for send in sends.values() if queue in send.queues and send.outcome == "done"]
        # What a consumer holds it keeps beyond its time: that goes when the consumer has given it back.
        most = sum(max(_ends_s(send)[1], released_s) + PROMPT_S > asked_s for send in there)
        least = sum(_ends_s(send)[0] - MOMENT_S > answered_s for send in there)
        if not least <= messages <= most:
            when = f"between {asked_s:.3f} and {answered_s:.3f} s"
            yield Violation("L2", f"{when} {queue} has {messages} messages, and should {least} to {most}")


def _put_forward(history: History, node: str, from_s: float, until_s: float) -> bool:
    """Whether the clock of a node was put forward in this time."""
    offset_s = 0.0
    for at_s, new_offset_s in history.clocks.get(node, ()):
        if from_s < at_s <= until_s and new_offset_s > offset_s:
            return True
        offset_s = new_offset_s
    return False


def l3_never_early(history: History) -> Iterator[Violation]:
    """L3: a message that is sent, or given back, with a delay is not delivered before, on any node.

    Over a start of a broker only the time of day says how long something waits: so it may be early if the clock of a
    broker that began anew was put forward meanwhile.
    """
    sends = history.sends_by_uid()

    def waited(began_s: float, delay_s: float, delivery: Delivery) -> bool:
        if delivery.at_s >= began_s + delay_s - MOMENT_S:
            return True
        return any(
            began_s < at_s <= delivery.at_s and _put_forward(history, node, began_s, delivery.at_s)
            for node, starts in history.starts.items()
            for at_s in starts
        )

    for (queue, uid), deliveries in history.deliveries_by_message().items():
        found = [send for send in sends.get(uid, ()) if send.possible]
        if found and not waited(min(send.invoked_s for send in found), found[0].delay_s, deliveries[0]):
            after = f"{deliveries[0].at_s - found[0].invoked_s:.3f} s after it was sent"
            yield Violation("L3", f"{queue} gave message {uid} {after} with {found[0].delay_s} s of delay", uid)
        if queue not in history.expected.calm:
            continue
        for delivery, later in itertools.pairwise(deliveries):
            for settlement in delivery.settlements:
                if settlement.kind == "nack" and not waited(settlement.invoked_s, settlement.delay_s, later):
                    after = f"{later.at_s - settlement.invoked_s:.3f} s after it was given back"
                    yield Violation("L3", f"{queue} gave message {uid} {after} for {settlement.delay_s} s", uid)


def l4_urgent_first(history: History) -> Iterator[Violation]:
    """L4: among messages confirmed before a calm queue's consumer was opened, more urgent ones come first."""
    sends = history.sends_by_uid()
    least: dict[str, int] = {}
    for delivery in history.deliveries:
        if delivery.queue not in history.expected.calm or delivery.redelivered or delivery.since_s is None:
            continue
        ends = [send.ended_s for send in sends.get(delivery.uid or -1, ()) if send.ended_s is not None]
        if not ends or min(ends) >= delivery.since_s:
            continue
        priority = delivery.line[0]
        if priority > least.get(delivery.stream, 9):
            what = f"{delivery.stream} got priority {priority} after {least[delivery.stream]}"
            yield Violation("L4", what, delivery.uid)
        least[delivery.stream] = min(priority, least.get(delivery.stream, 9))


def l5_one_holder(history: History) -> Iterator[Violation]:
    """L5: in a calm queue one consumer at a time holds messages of a group, and they come in their order."""
    holders: dict[tuple[str, str], list[Delivery]] = {}
    highest: dict[tuple[str, str], int] = {}
    for delivery in history.deliveries:
        group = delivery.line[1]
        if group is None or delivery.queue not in history.expected.calm:
            continue
        key = (delivery.queue, group)
        held = [one for one in holders.get(key, ()) if not _settled_before(one, delivery)]
        others = {one.consumer: None for one in held if one.consumer != delivery.consumer}
        if others:
            what = f"{delivery.consumer} got a message of group {group}, held by {', '.join(others)}"
            yield Violation("L5", what, delivery.uid)
        holders[key] = [*held, delivery]
        if not delivery.redelivered and delivery.sequence < highest.get(key, 0):
            yield Violation("L5", f"{delivery.sequence} of group {group} came after {highest[key]}", delivery.uid)
        highest[key] = max(delivery.sequence, highest.get(key, 0))


def _settled_before(delivery: Delivery, later: Delivery) -> bool:
    return any(settlement.after <= later.number for settlement in delivery.settlements)


def l6_no_more_than_the_window(history: History) -> Iterator[Violation]:
    """L6: a consumer of a calm queue never has more unsettled messages than its window."""
    held: dict[str, int] = {}
    settled = sorted(
        (settlement.after, delivery.stream)
        for settlement in history.settlements.values()
        for delivery in settlement.deliveries
    )
    at = 0
    for delivery in history.deliveries:
        while at < len(settled) and settled[at][0] <= delivery.number:
            held[settled[at][1]] = held.get(settled[at][1], 0) - 1
            at += 1
        held[delivery.stream] = held.get(delivery.stream, 0) + 1
        if delivery.queue in history.expected.calm and held[delivery.stream] > delivery.window:
            what = f"{delivery.stream} holds {held[delivery.stream]} messages with a window of {delivery.window}"
            yield Violation("L6", what, delivery.uid)
    for at_s, what, number, most in history.bounds:
        if what != "memory" and number > most:
            yield Violation("L6", f"at {at_s:.3f} s {what}: {number}, and may be {most}")


def l7_memory_is_bounded(history: History) -> Iterator[Violation]:
    """L7: a broker holds no more than its memory limit, but for the frames that each session may have under way."""
    for at_s, what, number, most in history.bounds:
        if what == "memory" and number > most:
            yield Violation("L7", f"at {at_s:.3f} s {number} bytes are used, and {most} may be")
