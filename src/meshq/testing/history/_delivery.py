"""Promises, checked over a history.

Each checker claims one promise, says on what conditions, and returns what it found against it.  None of them
takes an operation whose end is unknown for one that failed: it may have taken effect, or not, or may later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from meshq.testing.history._history import Delivery, History, Send, node_of, queue_of


@attrs.frozen
class Violation:
    """A promise that was not kept, with the history of the message concerned."""

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


def left_by_queue(history: History) -> dict[str, dict[int, None]]:
    """The messages that are left of each queue, wherever they stand."""
    found: dict[str, dict[int, None]] = {}
    for place, messages in history.final.remaining.items():
        found.setdefault(queue_of(place), {}).update((uid, None) for uid, _ in messages)
    return found


def q1_nothing_confirmed_is_lost(history: History) -> Iterator[Violation]:
    """Q1: a durable message whose send was confirmed is in each of its queues until it is settled.

    At the end it was delivered and then acknowledged or rejected (or that is unknown), or the journal still holds
    it, or the broker was allowed to remove it.  Delivered only is not enough: a broker that forgets a message
    which it had handed out has lost it.  Judged for queues of which the end is known: recounted, or drained.
    A broker that refuses to open a store of which nothing durable was changed has lost all that is in it.
    On a mesh it may be in any place of the queue, or on its way to one.
    Of a queue whose address drops what it has no room for no more are lost than its brokers have counted as dropped.
    """
    for why in history.refusals:
        yield Violation("Q1", f"the store is intact and was refused: {why}")
    delivered = history.deliveries_by_message()
    live = left_by_queue(history)
    dropped: dict[str, list[int]] = {}
    for uid, sends in history.sends_by_uid().items():
        confirmed = [send for send in sends if send.outcome == "done" and send.durable]
        for queue in dict.fromkeys(queue for send in confirmed for queue in send.queues):
            if queue not in live and queue not in history.expected.willing:
                continue
            kept = uid in live.get(queue, ()) or (queue, uid) in history.removed
            if not kept and not is_settled(delivered.get((queue, uid), ())):
                if queue in history.expected.dropping and (queue, uid) not in delivered:
                    dropped.setdefault(queue, []).append(uid)
                    continue
                how = "delivered, never settled, gone" if (queue, uid) in delivered else "never delivered"
                yield Violation("Q1", f"confirmed message {uid} is lost from {queue}: {how}", uid)
    for queue, lost in dropped.items():
        counted = history.final.dropped.get(queue, 0)
        if len(lost) > counted:
            yield Violation("Q1", f"{len(lost)} messages are lost from {queue}, which has dropped {counted}", lost[0])


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
    for place, messages in history.final.remaining.items():
        for uid, sequence in messages:
            if not any(queue_of(place) in send.queues for send in sends.get(uid, ())):
                yield Violation("Q2", f"{place} holds message {uid} (sequence {sequence}), never sent there", uid)


def q3_refused_is_never_delivered(history: History) -> Iterator[Violation]:
    """Q3: a message of which every send ended ``not_done`` is neither delivered nor kept."""
    delivered, live = history.deliveries_by_message(), left_by_queue(history)
    for uid, sends in history.sends_by_uid().items():
        if any(send.possible for send in sends):
            continue
        for queue in dict.fromkeys(queue for send in sends for queue in send.queues):
            if (queue, uid) in delivered:
                yield Violation("Q3", f"refused message {uid} was delivered from {queue}", uid)
            if uid in live.get(queue, ()):
                yield Violation("Q3", f"refused message {uid} is in {queue}", uid)


def q3_all_or_nothing(history: History) -> Iterator[Violation]:
    """Q3: a refused or rolled back message is nowhere; of a transaction's messages, all are there or none.

    A message that is there may have come by a send outside the transaction, or by another one that is whole.
    """
    yield from q3_refused_is_never_delivered(history)
    delivered, live = history.deliveries_by_message(), left_by_queue(history)
    sent: dict[str, dict[tuple[str, int], bool]] = {}
    ways: dict[tuple[str, int], dict[str, None]] = {}
    for send in history.sends.values():
        for queue in send.queues if send.possible else ():
            message = (queue, send.uid)
            ways.setdefault(message, {})[send.transaction] = None
            if send.transaction:
                seen = message in delivered or send.uid in live.get(queue, ()) or message in history.removed
                sent.setdefault(send.transaction, {})[message] = seen
    parted = {transaction for transaction, messages in sent.items() if not all(messages.values())}
    for transaction, messages in sent.items():
        if transaction in parted and any(seen and parted.issuperset(ways[one]) for one, seen in messages.items()):
            missing = [message for message, seen in messages.items() if not seen]
            yield Violation("Q3", f"of the transaction {transaction} {missing} is nowhere, and the rest is there")


def numbers_of(history: History) -> dict[tuple[str, int], dict[int, None]]:
    """Return the sequence numbers of each (place, uid), delivered or left; a message that is not due has none."""
    found: dict[tuple[str, int], dict[int, None]] = {}
    for (_, uid), deliveries in history.deliveries_by_message().items():
        for delivery in deliveries:
            found.setdefault((delivery.place, uid), {})[delivery.sequence] = None
    for place, messages in history.final.remaining.items():
        for uid, sequence in messages:
            if sequence:
                found.setdefault((place, uid), {})[sequence] = None
    return found


def stands_of(history: History) -> dict[tuple[str, int], dict[tuple[str, int], None]]:
    """Where each (queue, uid) was seen, delivered or left: the place and the number there."""
    found: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
    for (place, uid), numbers in numbers_of(history).items():
        found.setdefault((queue_of(place), uid), {}).update(((place, number), None) for number in numbers)
    return found


def _listed(stands: Iterable[tuple[str, int]]) -> str:
    """The numbers, with the places where these are not the queue itself."""
    return ", ".join(f"{number}{place[len(queue_of(place)) :]}" for place, number in stands)


def _most_stands(
    history: History,
    queue: str,
    once: int,
    stands: Iterable[tuple[int, tuple[str, int]]],
    sends: Mapping[int, Sequence[Send]],
) -> int:
    """Return how often a message of a queue may stand there: ``once``, or where messages move, in each place.

    Once more on a node that is gone and could not confirm the messages that it had stored, before they were given back;
    and once more where a bridge's target has forgotten the message (B3).
    """
    found = list(stands)
    known = dict.fromkeys(place for _, (place, _) in found)
    doubted = any(node_of(place) in history.expected.doubted for place in known) if len(known) > 1 else False
    most = (once * len(known) if queue in history.expected.odd else once) + int(doubted)
    if queue in history.expected.forgetful:
        sent_s = min(send.invoked_s for uid, _ in found for send in sends[uid])
        most += int(any(at_s > sent_s for at_s in history.starts.get(history.expected.forgetful[queue][0], ())))
    # Looked for only where it matters.
    if len(found) > most and queue in history.expected.redistributed:
        handed_over = int(_was_handed_over(history, found))
        pinned = queue in history.expected.pinned or history.expected.handed_over is None
        most += max(handed_over, _moved_on(history, found) if pinned else 0)
    return most if len(found) <= most else most + int(_stays_at_its_source(history, found))


def _was_handed_over(history: History, stands: Sequence[tuple[int, tuple[str, int]]]) -> bool:
    """Whether a message was delivered by a node that handed it over after that, with its count.

    Then the other node marks it as redelivered from the first time on, and the first node does not have it in the end.
    A client may look only later at what the first node has sent.
    """
    if history.expected.handed_over is None:
        return False
    ways: list[list[tuple[int, tuple[str, int]]]] = [
        [stand for stand in stands if node_of(stand[1][0]) == node] for node in history.expected.handed_over
    ]
    for uid, left in ways[0]:
        deliveries = history.deliveries_by_message().get((queue_of(left[0]), uid), ())
        received = any((one.place, one.sequence) == left for one in deliveries)
        kept = any(one == uid for one, _ in history.final.remaining.get(left[0], ()))
        for other, there in ways[1]:
            found = [one for one in deliveries if (one.place, one.sequence) == there]
            if other == uid and received and not kept and all(one.redelivered for one in found):
                return True
    return False


def _moved_on(history: History, stands: Sequence[tuple[int, tuple[str, int]]]) -> int:
    """Return how many of these stands a message has left, after a delivery there that nothing came of.

    It has gone on with its count, to a stand for each of these from which it comes marked as redelivered only.  A stand
    where an acknowledgement was confirmed, or where it is in the end, has not been left.
    """
    left: dict[tuple[int, tuple[str, int]], None] = {}
    marked: dict[tuple[int, tuple[str, int]], None] = {}
    for uid, (place, number) in stands:
        deliveries = [
            one
            for one in history.deliveries_by_message().get((queue_of(place), uid), ())
            if (one.place, one.sequence) == (place, number)
        ]
        if all(one.redelivered for one in deliveries):
            marked[uid, (place, number)] = None
        kept = (uid, number) in history.final.remaining.get(place, ())
        settlements = [settlement for one in deliveries for settlement in one.settlements]
        final = any(one.outcome == "done" and one.kind != "nack" for one in settlements)
        if deliveries and not kept and not final:
            left[uid, (place, number)] = None
    # The first one may be left and is marked itself, if nobody has looked at an earlier delivery.
    return min(len(left), len(marked), len(stands) - 1)


def _stays_at_its_source(history: History, stands: Sequence[tuple[int, tuple[str, int]]]) -> bool:
    """Whether a message that was carried over a bridge, and came back from there, stands at its source once more.

    It does if the target, which would know it, is gone for good and can't say so, and its acknowledgement was lost with
    a connection, or the source was killed before that was durable; or if the source itself is gone for good and never
    asks.  Then it waits there to the end, and nobody has received it at that place.
    """
    for where in history.expected.parted:
        here = sorted((number, uid) for uid, (place, number) in stands if place == where)
        if len(here) < 2:
            continue
        number, uid = here[0]
        deliveries = history.deliveries_by_message().get((queue_of(where), uid), ())
        received = any((delivery.place, delivery.sequence) == (where, number) for delivery in deliveries)
        # What was never received there is known because it is there at the end.
        if not received:
            return True
    return False


def q4_exactly_once(history: History) -> Iterator[Violation]:
    """Q4: a message sent with a duplicate id stands in each queue once, however often it was sent.

    One stand in a queue is one place and one sequence number: deliveries of one are redeliveries, a second one is a
    duplicate, on whatever node.  Two messages with one duplicate id count together.  The workload has to stay inside
    the window of duplicate ids.

    The id of a message that is not durable is forgotten with its broker, and whoever had no answer sends it again, a
    client or another node: once more for each start, between the send and the last time that it was new somewhere, of
    a node where it stands, or of the one that it was sent to while that had not answered.  It holds for none that is
    durable: if both were sent, each of them may stand once.
    """
    places: dict[tuple[str, str], dict[tuple[int, tuple[str, int]], None]] = {}
    stands, sends_of = stands_of(history), history.sends_by_uid()
    for uid, sends in sends_of.items():
        for duplicate_id in dict.fromkeys(send.duplicate_id for send in sends):
            if duplicate_id is None or any(send.duplicate_id != duplicate_id for send in sends):
                continue
            for queue in dict.fromkeys(queue for send in sends for queue in send.queues):
                for stand in stands.get((queue, uid), ()):
                    places.setdefault((queue, duplicate_id), {})[uid, stand] = None
    for (queue, duplicate_id), found in places.items():
        if len(found) < 2:
            continue
        once = 1 + _forgotten(history, found, sends_of) + _is_mixed(found, sends_of)
        if len(found) > _most_stands(history, queue, once, found, sends_of):
            seen = ", ".join(f"message {uid} at {_listed([stand])}" for uid, stand in found)
            what = f"duplicate id {duplicate_id} stands {len(found)} times in {queue}: {seen}"
            yield Violation("Q4", what, next(iter(found))[0])


def _is_mixed(stands: Iterable[tuple[int, tuple[str, int]]], sends_of: Mapping[int, Sequence[Send]]) -> bool:
    """Whether some sends of these messages are durable, and some are not."""
    return len({send.durable for uid, _ in stands for send in sends_of[uid] if send.possible}) > 1


def _forgotten(
    history: History, stands: Iterable[tuple[int, tuple[str, int]]], sends_of: Mapping[int, Sequence[Send]]
) -> int:
    """How often nodes have begun anew that may have known some messages, in the time in which that can be why these
    stand somewhere once more; 0 if all are durable."""
    found = list(stands)
    sends = [send for uid in dict.fromkeys(uid for uid, _ in found) for send in sends_of[uid]]
    if all(send.durable for send in sends):
        return 0
    sent_s = min(send.invoked_s for send in sends)
    # A message that comes once more comes after the start.
    until_s = max(_new_at_s(history, uid, stand) for uid, stand in found)
    there = dict.fromkeys(node_of(place) for _, (place, _) in found)
    until = dict.fromkeys(there, until_s)
    for send in sends:
        if send.node not in there:
            # Its sender sends it again only while there is no answer.
            answered_s = send.ended_s if send.outcome in ("done", "not_done") else None
            open_s = min(until_s, math.inf if answered_s is None else answered_s)
            until[send.node] = max(open_s, until.get(send.node, open_s))
    return sum(sent_s < at_s < end_s for node, end_s in until.items() for at_s in history.starts.get(node, ()))


def _new_at_s(history: History, uid: int, stand: tuple[str, int]) -> float:
    """When a message was first delivered from where it stands; never: as late as can be."""
    deliveries = history.deliveries_by_message().get((queue_of(stand[0]), uid), ())
    return min((one.at_s for one in deliveries if (one.place, one.sequence) == stand), default=math.inf)


def q5_no_more_often_than_failures_explain(history: History) -> Iterator[Violation]:
    """Q5: without a duplicate id a message stands in a queue at most once per send that may have worked; and a
    message that is delivered again is marked as redelivered, with a count that is higher than 1.

    A message that is not durable is forgotten with its broker, and its client then sends it again: once more for
    each restart.
    """
    sends = history.sends_by_uid()
    for (queue, uid), stands in stands_of(history).items():
        possible = sum(send.possible for send in sends.get(uid, ()))
        if not all(send.durable for send in sends.get(uid, ())):
            possible += history.restarts
        known = ((uid, stand) for stand in stands)
        if uid in sends and len(stands) > _most_stands(history, queue, max(possible, 1), known, sends):
            yield Violation("Q5", f"message {uid}, sent {possible} times, stands in {queue} at {_listed(stands)}", uid)
    seen: dict[tuple[str, int, int], Delivery] = {}
    for delivery in history.deliveries:
        if delivery.uid is None:
            continue
        place = (delivery.place, delivery.uid, delivery.sequence)
        earlier = seen.setdefault(place, delivery)
        marked = delivery.redelivered and delivery.delivery_count > 1
        if earlier is not delivery and not marked and delivery.was_dispatched_after(earlier.at_s, earlier.stream):
            what = f"message {delivery.uid} came again from {delivery.place} (delivery {delivery.number}) unmarked"
            yield Violation("Q5", what, delivery.uid)


def q6_consumed_is_final(history: History) -> Iterator[Violation]:
    """Q6: once an acknowledgement is confirmed, that place of the queue is neither delivered again nor kept."""
    final: dict[tuple[str, int | None, int], tuple[float, str]] = {}
    for settlement in history.settlements.values():
        if settlement.kind == "ack" and settlement.outcome == "done" and settlement.ended_s is not None:
            for delivery in settlement.deliveries:
                place = (delivery.place, delivery.uid, delivery.sequence)
                acked = (settlement.ended_s, delivery.stream)
                final[place] = min(acked, final.get(place, acked))
    for delivery in history.deliveries:
        ended_s, stream = final.get((delivery.place, delivery.uid, delivery.sequence), (math.inf, ""))
        if delivery.was_dispatched_after(ended_s, stream):
            what = f"message {delivery.uid} was acknowledged at {ended_s} and came again from {delivery.place}"
            yield Violation("Q6", what, delivery.uid)
    for where, messages in history.final.remaining.items():
        for uid, sequence in messages:
            if (where, uid, sequence) in final:
                yield Violation("Q6", f"{where} still holds message {uid}, which was acknowledged", uid)
