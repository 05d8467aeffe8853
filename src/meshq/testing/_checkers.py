"""Promises, checked over a history.

Each checker claims one promise, says on what conditions, and returns what it found against it.  None of them
takes an operation whose end is unknown for one that failed: it may have taken effect, or not, or may later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from meshq.testing._history import Delivery, History


@attrs.frozen
class Violation:
    """A promise that was not kept: which, how, and by what happened to the message concerned."""

    checker: str
    what: str
    uid: int | None = None

    def __str__(self) -> str:
        return f"{self.checker}: {self.what}"


Checker = Callable[[History], Iterator[Violation]]


def is_settled(deliveries: Sequence[Delivery]) -> bool:
    """Whether some ack or reject of one of them may have taken effect."""
    return any(
        settlement.possible and settlement.kind != "nack"
        for delivery in deliveries
        for settlement in delivery.settlements
    )


def q1_nothing_confirmed_is_lost(history: History) -> Iterator[Violation]:
    """Q1: a durable message whose send was confirmed is in each of its queues until it is settled.

    At the end it was delivered and then acknowledged or rejected (or that is unknown), or the journal still holds
    it, or the broker was allowed to remove it.  Delivered only is not enough: a broker that forgets a message
    which it had handed out has lost it.  Judged for queues of which the end is known: recounted, or drained.
    """
    delivered = history.deliveries_by_message()
    live = {queue: {uid for uid, _ in messages} for queue, messages in history.remaining.items()}
    for uid, sends in history.sends_by_uid().items():
        confirmed = [send for send in sends if send.outcome == "done" and send.durable]
        for queue in dict.fromkeys(queue for send in confirmed for queue in send.queues):
            if queue not in live and queue not in history.willing:
                continue
            kept = uid in live.get(queue, ()) or (queue, uid) in history.removed
            if not kept and not is_settled(delivered.get((queue, uid), ())):
                how = "delivered, never settled, gone" if (queue, uid) in delivered else "never delivered"
                yield Violation("Q1", f"confirmed message {uid} is lost from {queue}: {how}", uid)


def q2_nothing_from_nowhere(history: History) -> Iterator[Violation]:
    """Q2: every delivery, and every message left, is one that was sent, to that queue, before, and is intact."""
    sends = history.sends_by_uid()
    for delivery in history.deliveries:
        where = f"delivery {delivery.number} from {delivery.queue} to {delivery.consumer}"
        if delivery.uid is None:
            yield Violation("Q2", f"{where} has a damaged body")
            continue
        earlier = [send for send in sends.get(delivery.uid, ()) if send.invoked_s <= delivery.at_s]
        if not earlier:
            yield Violation("Q2", f"{where}: message {delivery.uid} had not been sent", delivery.uid)
        elif not any(delivery.queue in send.queues for send in earlier):
            yield Violation("Q2", f"{where}: message {delivery.uid} was not sent to that queue", delivery.uid)
    for queue, messages in history.remaining.items():
        for uid, sequence in messages:
            if not any(queue in send.queues for send in sends.get(uid, ())):
                yield Violation("Q2", f"{queue} holds message {uid} (sequence {sequence}), never sent there", uid)


def q3_refused_is_never_delivered(history: History) -> Iterator[Violation]:
    """Q3: a message of which every send ended ``not_done`` is neither delivered nor kept."""
    delivered = history.deliveries_by_message()
    for uid, sends in history.sends_by_uid().items():
        if any(send.possible for send in sends):
            continue
        for queue in dict.fromkeys(queue for send in sends for queue in send.queues):
            if (queue, uid) in delivered:
                yield Violation("Q3", f"refused message {uid} was delivered from {queue}", uid)
            if any(uid == held for held, _ in history.remaining.get(queue, ())):
                yield Violation("Q3", f"refused message {uid} is in {queue}", uid)


def _numbers(history: History) -> dict[tuple[str, int], dict[int, None]]:
    """The sequence numbers under which each (queue, uid) was seen, delivered or left."""
    found: dict[tuple[str, int], dict[int, None]] = {}
    for (queue, uid), deliveries in history.deliveries_by_message().items():
        for delivery in deliveries:
            found.setdefault((queue, uid), {})[delivery.sequence] = None
    for queue, messages in history.remaining.items():
        for uid, sequence in messages:
            found.setdefault((queue, uid), {})[sequence] = None
    return found


def q4_exactly_once(history: History) -> Iterator[Violation]:
    """Q4: what is sent with a duplicate id stands in each queue once, however often it was sent.

    One place in a queue is one sequence number: deliveries of one place are redeliveries, a second place is a
    duplicate.  Two messages with one duplicate id count together.  The workload has to stay inside the window of
    duplicate ids.
    """
    places: dict[tuple[str, str], dict[tuple[int, int], None]] = {}
    numbers = _numbers(history)
    for uid, sends in history.sends_by_uid().items():
        for duplicate_id in dict.fromkeys(send.duplicate_id for send in sends):
            if duplicate_id is None or any(send.duplicate_id != duplicate_id for send in sends):
                continue
            for queue in dict.fromkeys(queue for send in sends for queue in send.queues):
                for number in numbers.get((queue, uid), ()):
                    places.setdefault((queue, duplicate_id), {})[uid, number] = None
    for (queue, duplicate_id), found in places.items():
        if len(found) > 1:
            seen = ", ".join(f"message {uid} at {number}" for uid, number in found)
            what = f"duplicate id {duplicate_id} stands {len(found)} times in {queue}: {seen}"
            yield Violation("Q4", what, next(iter(found))[0])


def q5_no_more_often_than_failures_explain(history: History) -> Iterator[Violation]:
    """Q5: without a duplicate id a message stands in a queue at most once per send that may have worked; and
    whatever is handed out again is marked as redelivered, with a count that is higher than 1."""
    sends = history.sends_by_uid()
    for (queue, uid), numbers in _numbers(history).items():
        possible = sum(send.possible for send in sends.get(uid, ()))
        if uid in sends and len(numbers) > max(possible, 1):
            places = ", ".join(map(str, numbers))
            yield Violation("Q5", f"message {uid}, sent {possible} times, stands in {queue} at {places}", uid)
    seen: dict[tuple[str, int, int], Delivery] = {}
    for delivery in history.deliveries:
        if delivery.uid is None:
            continue
        place = (delivery.queue, delivery.uid, delivery.sequence)
        earlier = seen.setdefault(place, delivery)
        if earlier is not delivery and not (delivery.redelivered and delivery.delivery_count > 1):
            what = f"message {delivery.uid} came again from {delivery.queue} (delivery {delivery.number}) unmarked"
            yield Violation("Q5", what, delivery.uid)


def q6_consumed_is_final(history: History) -> Iterator[Violation]:
    """Q6: once an acknowledgement is confirmed, that place of the queue is neither delivered again nor kept."""
    final: dict[tuple[str, int | None, int], float] = {}
    for settlement in history.settlements.values():
        if settlement.kind == "ack" and settlement.outcome == "done" and settlement.ended_s is not None:
            for delivery in settlement.deliveries:
                place = (delivery.queue, delivery.uid, delivery.sequence)
                final[place] = min(settlement.ended_s, final.get(place, settlement.ended_s))
    for delivery in history.deliveries:
        ended_s = final.get((delivery.queue, delivery.uid, delivery.sequence))
        if ended_s is not None and delivery.at_s > ended_s:
            what = f"message {delivery.uid} was acknowledged at {ended_s} and came again from {delivery.queue}"
            yield Violation("Q6", what, delivery.uid)
    for queue, messages in history.remaining.items():
        for uid, sequence in messages:
            if (queue, uid, sequence) in final:
                yield Violation("Q6", f"{queue} still holds message {uid}, which was acknowledged", uid)


def q7_first_in_first_out(history: History) -> Iterator[Violation]:
    """Q7: a queue numbers what one producer sent in the order of sending, gives no number twice, and gives its
    only consumer the numbers in that order.

    A message sent several times has the place of one of them: two messages are compared if all sends of the one
    began before any of the other.  A number is compared with those before it also across restarts.
    """
    yield from _numbers_given_once(history)
    yield from _producers_in_order(history)
    yield from _consumers_in_order(history)


def _numbers_given_once(history: History) -> Iterator[Violation]:
    owner: dict[tuple[str, int], int] = {}
    for (queue, uid), numbers in _numbers(history).items():
        for number in numbers:
            other = owner.setdefault((queue, number), uid)
            if other != uid:
                yield Violation("Q7", f"{queue} gave number {number} to message {other} and message {uid}", uid)


def _producers_in_order(history: History) -> Iterator[Violation]:
    numbers = _numbers(history)
    streams: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for uid, sends in history.sends_by_uid().items():
        producers = dict.fromkeys(send.producer for send in sends)
        if len(producers) == 1:
            for queue in dict.fromkeys(queue for send in sends for queue in send.queues):
                found = numbers.get((queue, uid))
                if found:
                    stream = streams.setdefault((sends[0].producer, queue), [])
                    stream.append((sends[0].op, sends[-1].op, uid))
    for (producer, queue), stream in streams.items():
        yield from _stream_in_order(producer, queue, sorted(stream), numbers)


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


def _consumers_in_order(history: History) -> Iterator[Violation]:
    consumers: dict[str, dict[str, None]] = {}
    for delivery in history.deliveries:
        consumers.setdefault(delivery.queue, {})[delivery.consumer] = None
    highest: dict[str, int] = {}
    for delivery in history.deliveries:
        queue = delivery.queue
        if len(consumers[queue]) == 1 and not delivery.redelivered:
            if delivery.sequence < highest.get(queue, 0):
                what = f"{delivery.consumer} got {delivery.sequence} after {highest[queue]} from {queue}"
                yield Violation("Q7", what, delivery.uid)
            highest[queue] = max(delivery.sequence, highest.get(queue, 0))
