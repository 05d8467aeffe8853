"""Promises about order: numbers, streams of producers, and deliveries to a consumer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from meshq.testing.history._delivery import Violation, numbers_of
from meshq.testing.history._history import Delivery, History, Send, Settlement, node_of, queue_of


def q7_first_in_first_out(history: History) -> Iterator[Violation]:
    """Q7: a queue numbers the messages of one producer in the order of sending, gives no number twice, and gives its
    only consumer the messages in that order.

    A message sent several times has the place of one of them: two messages are compared if all sends of the one
    began before any of the other.  A number is compared with those before it also across restarts.
    Whoever sent: what was confirmed before another message was first sent has the lower number.
    What a consumer gives back is given to it again before more than its window of what stands behind it.
    Where messages wait, move, have priorities or groups, only those of one priority and group are compared, as they
    are delivered.
    On a mesh each place of a queue is such a queue; and messages are compared that were sent to the same node, but for
    what is not durable, was lost with that node, and was dealt anew, and for what waited for a node that
    is gone and was given back, and for queues whose messages are redistributed.
    """
    yield from _numbers_given_once(history)
    yield from _producers_in_order(history)
    yield from _confirmed_before(history)
    yield from _consumers_in_order(history)
    yield from _returned_in_order(history)


def _numbers_given_once(history: History) -> Iterator[Violation]:
    owner: dict[tuple[str, int], int] = {}
    for (queue, uid), numbers in numbers_of(history).items():
        for number in numbers:
            other = owner.setdefault((queue, number), uid)
            if other != uid:
                yield Violation("Q7", f"{queue} gave number {number} to message {other} and message {uid}", uid)


def _producers_in_order(history: History) -> Iterator[Violation]:
    numbers = numbers_of(history)
    sends_of = history.sends_by_uid()
    streams: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for place, uid in numbers:
        if _passed(history, place, numbers[place, uid]):
            continue
        sends = [send for send in sends_of.get(uid, ()) if queue_of(place) in send.queues]
        if any(_dealt_anew(history, send, place) for send in sends):
            continue
        if len({send.producer for send in sends}) == 1:
            stream = streams.setdefault((sends[0].producer, place), [])
            stream.append((sends[0].op, sends[-1].op, uid))
    for (producer, place), stream in streams.items():
        yield from _stream_in_order(producer, place, sorted(stream), numbers)


def _passed(history: History, place: str, numbers: Iterable[int]) -> bool:
    """Whether a message may stand behind others that were sent later: it has moved, or was given back."""
    if queue_of(place) in history.expected.redistributed:
        return True
    return queue_of(place) in history.expected.odd or max(numbers) > history.expected.behind.get(place, math.inf)


def _dealt_anew(history: History, send: Send, place: str) -> bool:
    """Whether a message that was lost with the node it was sent to may have come to this place in a later deal.

    What of a run was delivered before, here or at another node, came there from the first deal, which dealt the others
    elsewhere: the two have no order.
    """
    if send.durable or not node_of(place):
        return False
    end = math.inf if send.ended_s is None else send.ended_s
    return any(send.invoked_s < at_s < end for at_s in history.starts.get(send.node, ()))


def _stream_in_order(
    producer: str,
    queue: str,
    stream: list[tuple[int, int, int]],
    numbers: dict[tuple[str, int], dict[int, None]],
) -> Iterator[Violation]:
    """``stream`` has (first operation, last operation, uid), sorted."""
    ended = sorted(stream, key=lambda entry: entry[1])
    at, highest, holder = 0, 0, 0
    for first, _, uid in stream:
        while at < len(ended) and ended[at][1] < first:
            lowest = min(numbers[queue, ended[at][2]])
            if lowest > highest:
                highest, holder = lowest, ended[at][2]
            at += 1
        if max(numbers[queue, uid]) < highest:
            what = f"{queue} has message {uid} of {producer} before message {holder}, which was sent first"
            yield Violation("Q7", what, uid)


def _confirmed_before(history: History) -> Iterator[Violation]:
    numbers = numbers_of(history)
    sends_of = history.sends_by_uid()
    begun: dict[tuple[str, str], list[tuple[float, int]]] = {}
    confirmed: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for place, uid in numbers:
        sends = [send for send in sends_of.get(uid, ()) if queue_of(place) in send.queues]
        if not sends or _passed(history, place, numbers[place, uid]):
            continue
        ends = [send.ended_s for send in sends if send.outcome == "done" and send.ended_s is not None]
        way = (sends[0].node, place)
        begun.setdefault(way, []).append((min(send.invoked_s for send in sends), uid))
        if ends:
            confirmed.setdefault(way, []).append((min(ends), uid))
    for way, later in begun.items():
        queue = way[1]
        earlier = sorted(confirmed.get(way, ()))
        at, highest, holder = 0, 0, 0
        for invoked_s, uid in sorted(later):
            while at < len(earlier) and earlier[at][0] < invoked_s:
                lowest = min(numbers[queue, earlier[at][1]])
                if lowest > highest:
                    highest, holder = lowest, earlier[at][1]
                at += 1
            if max(numbers[queue, uid]) < highest:
                what = f"{queue} has message {uid} before message {holder}, confirmed before {uid} was sent"
                yield Violation("Q7", what, uid)


def _consumers_in_order(history: History) -> Iterator[Violation]:
    consumers: dict[str, dict[str, None]] = {}
    for delivery in history.deliveries:
        consumers.setdefault(delivery.place, {})[delivery.consumer] = None
    highest: dict[tuple[str, tuple[int, str | None]], int] = {}
    for delivery in history.deliveries:
        queue = delivery.place
        single = queue in history.expected.sole or len(consumers[queue]) == 1
        if single and not delivery.redelivered:
            line = (queue, delivery.line)
            if delivery.sequence < highest.get(line, 0) and not _revived(history, delivery):
                what = f"{delivery.consumer} got {delivery.sequence} after {highest[line]} from {queue}"
                yield Violation("Q7", what, delivery.uid)
            highest[line] = max(delivery.sequence, highest.get(line, 0))


def _revived(history: History, delivery: Delivery) -> bool:
    """Whether a message had expired, waited for room to be moved, and lives again since a clock was put back."""
    ttl_s = math.inf if delivery.uid is None else history.expected.ttl_of(delivery.uid)
    if ttl_s == math.inf:
        return False
    sends = history.sends_by_uid().get(delivery.uid or -1, ())
    if not sends:
        return False
    sent_s = min(send.invoked_s for send in sends)
    ends_s = max(math.inf if send.ended_s is None else send.ended_s for send in sends) + ttl_s
    expired, offset_s = False, 0.0
    for at_s, new_offset_s in history.clocks.get(delivery.node, ()):
        if at_s > delivery.at_s:
            break
        # The latest that the clock showed, while the message was there, before it was set.
        expired |= at_s > sent_s and at_s + offset_s >= sent_s + ttl_s
        offset_s = new_offset_s
        if expired and at_s + offset_s < ends_s:
            return True
    return False


def _returned_in_order(history: History) -> Iterator[Violation]:
    """Check that at most a window of messages passes one that is given back: those sent before the broker knew.

    Not judged while a consumer of a dead client may get it.
    """
    for settlement in history.settlements.values():
        if settlement.kind == "nack" and settlement.possible and settlement.deliveries:
            first = settlement.deliveries[0]
            at_s = settlement.invoked_s
            haunted = any(began <= at_s < ended for began, ended in history.haunted.get(first.place, ()))
            if (
                first.stream
                and first.place in history.expected.sole
                and not haunted
                and first.queue not in history.expected.odd
            ):
                yield from _returned(history, settlement)


def _returned(history: History, settlement: Settlement) -> Iterator[Violation]:
    stream = settlement.deliveries[0].stream
    waiting = {delivery.sequence: delivery for delivery in settlement.deliveries}
    passed = dict.fromkeys(waiting, 0)
    for delivery in history.deliveries[settlement.after :]:
        if delivery.stream != stream:
            continue
        waiting.pop(delivery.sequence, None)
        if not waiting:
            return
        for sequence in [sequence for sequence in waiting if sequence < delivery.sequence]:
            passed[sequence] += 1
            returned = waiting[sequence]
            if passed[sequence] > returned.window:
                what = f"{stream} gave {sequence} back and got more than its window from behind it first"
                yield Violation("Q7", what, returned.uid)
                del waiting[sequence]
