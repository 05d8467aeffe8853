"""The history of a run: requests, answers, deliveries, and the messages that are left.

The workload records with one call each; the checkers read it afterwards.  Every operation is *invoked* and then
ends ``"done"``, ``"not_done"`` or ``"unknown"``, or never: an operation without an end is unknown, and unknown is
never taken for failed.  A message is known by a number of its own, the ``uid``, which its body carries with a
checksum (``body_of``, ``uid_of``): so a delivery says by itself what it is, and whether it is intact.

On a mesh a queue is one name with a *place* on each node, ``"queue@node"``: messages are sent to queues, and stand,
are numbered, delivered and counted in places.  Where there is one node, a queue is its own place.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence

import attrs

from meshq.errors import Outcome, invariant
from meshq.testing.history._expectations import Expectations
from meshq.testing.history._final_counts import FinalCounts

#: ``uid`` and checksum, in hexadecimal, with a separator after each.
HEAD_BYTES = 16 + 1 + 8 + 1


def body_of(uid: int, size_bytes: int = 0) -> bytes:
    """A body that carries ``uid`` and can be checked; at least ``HEAD_BYTES`` long."""
    name = b"%016x" % uid
    filler = (name * (max(size_bytes - HEAD_BYTES, 0) // len(name) + 1))[: max(size_bytes - HEAD_BYTES, 0)]
    return b"%s %08x %s" % (name, zlib.crc32(filler, zlib.crc32(name)), filler)


def uid_of(body: bytes) -> int | None:
    """The ``uid`` in a body; None if the body is not as it was made."""
    name, filler = body[:16], body[HEAD_BYTES:]
    if body[16:HEAD_BYTES] != b" %08x " % zlib.crc32(filler, zlib.crc32(name)):
        return None
    return int(name, 16)


def place_of(queue: str, node: str) -> str:
    """The place of a queue on a node; no node: there is only one."""
    return f"{queue}@{node}" if node else queue


def queue_of(place: str) -> str:
    """The queue that has this place."""
    return place.partition("@")[0]


def node_of(place: str) -> str:
    """The node of a place; empty: there is only one node."""
    return place.partition("@")[2].partition(".")[0]


@attrs.define(eq=False, kw_only=True)
class Send:
    """An attempt to send one message."""

    op: int
    client: str
    #: An ordered stream of sends: whoever sends concurrently has several.
    producer: str
    #: The queues that get a copy each.
    queues: tuple[str, ...]
    uid: int
    duplicate_id: str | None = None
    durable: bool = True
    #: Sent after healing, to see that the system works again.
    barrier: bool = False
    #: The node that it was sent to.
    node: str = ""
    #: The transaction that it belongs to.
    transaction: str = ""
    #: Seconds for which it is of use, and for which it waits first.
    ttl_s: float = math.inf
    delay_s: float = 0.0
    invoked_s: float
    ended_s: float | None = None
    #: None: it has not ended, which is as good as unknown.
    outcome: Outcome | None = None

    @property
    def possible(self) -> bool:
        """Whether the message may have been placed."""
        return self.outcome != "not_done"


@attrs.define(eq=False, kw_only=True)
class Delivery:
    """A message handed to the application."""

    number: int
    client: str
    consumer: str
    queue: str
    #: None: the body was damaged.
    uid: int | None
    sequence: int
    redelivered: bool
    delivery_count: int
    at_s: float
    #: One opening of one consumer in one session; with a new session a new one begins.  Empty: not known.
    stream: str = ""
    #: How many messages that consumer may hold.
    window: int = 0
    #: When the session began in which it was dispatched; None: not known, and taken for later than all else.
    since_s: float | None = None
    #: The node from which it came.
    node: str = ""
    #: What has an order of its own among the messages of a queue: those of one priority and group.
    line: tuple[int, str | None] = (4, None)
    settlements: list[Settlement] = attrs.field(factory=list, repr=False)

    @property
    def place(self) -> str:
        """Where it stood."""
        return place_of(self.queue, self.node)

    def was_dispatched_after(self, at_s: float, stream: str) -> bool:
        """Whether the broker is known to have dispatched this after something that happened then, in that stream.

        Messages dispatched to a session stand in its client's buffer, and are handed out when the broker is long
        gone and another one has given the same messages to others.  So it counts only in the same stream, in a
        session that began later, and in one that was alive afterwards: a settlement of it was confirmed.
        """
        if self.at_s <= at_s:
            return False
        if self.since_s is None or self.since_s > at_s or (stream and stream == self.stream):
            return True
        return any(settlement.outcome == "done" for settlement in self.settlements)


@attrs.define(eq=False, kw_only=True)
class Settlement:
    """A call that settles deliveries: ``kind`` is ``"ack"``, ``"nack"`` or ``"reject"``."""

    op: int
    kind: str
    deliveries: tuple[Delivery, ...]
    #: How many deliveries there had been.
    after: int
    #: Seconds for which what is given back waits first.
    delay_s: float = 0.0
    invoked_s: float
    ended_s: float | None = None
    outcome: Outcome | None = None

    @property
    def possible(self) -> bool:
        """Whether it may have taken effect."""
        return self.outcome != "not_done"


class History:
    """The events of a run, in the order in which they were recorded.  ``clock`` gives the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ops = 0
        #: What the checkers have to know of queues and places, to judge them fairly.
        self.expected: Expectations = Expectations()
        #: What was counted when all was over.
        self.final: FinalCounts = FinalCounts()
        self.sends: dict[int, Send] = {}
        self.deliveries: list[Delivery] = []
        self.settlements: dict[int, Settlement] = {}
        #: (time, what): faults and other notes, for whoever reads a failure.
        self.notes: list[tuple[float, str]] = []
        #: (queue, uid) -> why the broker may have removed it: expired, dead-lettered, purged, ...
        self.removed: dict[tuple[str, int], str] = {}
        #: When the last fault was over.
        self.healed_s: float | None = None
        #: Node -> when its time of day was set, and by how many seconds it is off since then.
        self.clocks: dict[str, list[tuple[float, float]]] = {}
        #: Place -> from when until when clients that died may still have a consumer there, for all the broker knows.
        self.haunted: dict[str, list[tuple[float, float]]] = {}
        #: How often the broker was started again.
        self.restarts: int = 0
        #: When, by node.
        self.starts: dict[str, list[float]] = {}
        #: Why the broker refused to open a store whose disk had lost nothing but what was not synced.
        self.refusals: list[str] = []
        #: (queue, messages in it, when that was asked, when it was answered, when its last consumer had closed).
        self.looks: list[tuple[str, int, float, float, float]] = []
        #: (time, what, how much of it there was, how much there may be).
        self.bounds: list[tuple[float, str, int, int]] = []
        #: (node, mode, how it sees the one that is gone, messages that it has dealt to that one since).
        self.deals: list[tuple[str, str, str, int]] = []
        #: Number of a delivery -> the hops it has made, those it had to make, and its sender's duplicate id.
        self.hops: dict[int, tuple[int, int, str | None]] = {}
        #: Message that a partner was given -> when the partner had it, infinite if never; None: there is no partner.
        self.partner_s: dict[int, float] | None = None

    # -- sending ---------------------------------------------------------------------------------------------

    def sent(
        self,
        client: str,
        queues: str | Sequence[str],
        uid: int,
        *,
        producer: str | None = None,
        duplicate_id: str | None = None,
        durable: bool = True,
        barrier: bool = False,
        node: str = "",
        transaction: str = "",
        ttl_s: float = math.inf,
        delay_s: float = 0.0,
    ) -> int:
        """A send begins; returns the number of the operation.  A repeated send of a ``uid`` is another one."""
        self._ops += 1
        self.sends[self._ops] = Send(
            op=self._ops,
            client=client,
            producer=client if producer is None else producer,
            queues=(queues,) if isinstance(queues, str) else tuple(queues),
            uid=uid,
            duplicate_id=duplicate_id,
            durable=durable,
            barrier=barrier,
            node=node,
            transaction=transaction,
            ttl_s=ttl_s,
            delay_s=delay_s,
            invoked_s=self._clock(),
        )
        return self._ops

    def send_ok(self, op: int) -> None:
        """Record that a send was confirmed."""
        self._end(self.sends[op], "done")

    def send_failed(self, op: int, outcome: Outcome) -> None:
        """Record that a send ended with an error of this outcome."""
        self._end(self.sends[op], outcome)

    def _end(self, operation: Send | Settlement, outcome: Outcome) -> None:
        invariant(operation.ended_s is None, f"operation {operation.op} ends twice")
        operation.ended_s, operation.outcome = self._clock(), outcome

    # -- replication -----------------------------------------------------------------------------------------

    def given_to_partner(self, uid: int) -> None:
        """Record that the partner was given a message, and has to have it before anyone else."""
        if self.partner_s is not None:
            self.partner_s.setdefault(uid, math.inf)

    def partner_has(self, uid: int) -> None:
        """Record that the partner has a message from now on."""
        if self.partner_s is not None:
            self.partner_s[uid] = min(self.partner_s[uid], self._clock())

    # -- receiving -------------------------------------------------------------------------------------------

    def delivered(
        self,
        client: str,
        consumer: str,
        queue: str,
        body: bytes,
        *,
        sequence: int,
        redelivered: bool = False,
        delivery_count: int = 1,
        stream: str = "",
        window: int = 0,
        since_s: float | None = None,
        node: str = "",
        line: tuple[int, str | None] = (4, None),
    ) -> int:
        """The application was handed a message; returns the number of the delivery."""
        delivery = Delivery(
            number=len(self.deliveries),
            client=client,
            consumer=consumer,
            queue=queue,
            uid=uid_of(body),
            sequence=sequence,
            redelivered=redelivered,
            delivery_count=delivery_count,
            at_s=self._clock(),
            stream=stream,
            window=window,
            since_s=since_s,
            node=node,
            line=line,
        )
        self.deliveries.append(delivery)
        return delivery.number

    def settling(self, deliveries: Sequence[int], kind: str = "ack", *, delay_s: float = 0.0) -> int:
        """An ``ack``, ``nack`` or ``reject`` of these deliveries begins; returns the number of the operation."""
        self._ops += 1
        settlement = Settlement(
            op=self._ops,
            kind=kind,
            deliveries=tuple(self.deliveries[number] for number in deliveries),
            after=len(self.deliveries),
            delay_s=delay_s,
            invoked_s=self._clock(),
        )
        self.settlements[self._ops] = settlement
        for delivery in settlement.deliveries:
            delivery.settlements.append(settlement)
        return self._ops

    def settle_ok(self, op: int) -> None:
        """Record that a settlement was confirmed: it is stored."""
        self._end(self.settlements[op], "done")

    def settle_failed(self, op: int, outcome: Outcome) -> None:
        """Record that a settlement ended with an error of this outcome."""
        self._end(self.settlements[op], outcome)

    # -- around them -----------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        """An event that a reader of a failure wants to know: a fault, a restart."""
        self.notes.append((self._clock(), what))

    def healed(self) -> None:
        """The last fault is over."""
        self.healed_s = self._clock()
        self.note("healed")

    def haunts(self, place: str, seconds: float) -> None:
        """A client that consumed from a place has died: for so long the broker may take it for silent only."""
        now = self._clock()
        self.haunted.setdefault(place, []).append((now, now + seconds))

    def gone(self, queue: str, uid: int, why: str) -> None:
        """The broker was told, or allowed, to remove a message: expired, dead-lettered, purged, dropped."""
        self.removed[queue, uid] = why

    def restarted(self, node: str = "") -> None:
        """The broker is started again."""
        self.restarts += 1
        self.starts.setdefault(node, []).append(self._clock())
        self.note("the broker is started again")

    def ended(self, node: str) -> None:
        """Note that a node has gone for good, with its non-durable messages."""
        self.starts.setdefault(node, []).append(self._clock())
        self.note(f"{node} is gone for good")

    def dealt(self, node: str, mode: str, state: str, number: int) -> None:
        """A node has dealt so many messages to one that it knows to be ``state``."""
        self.deals.append((node, mode, state, number))

    def clock_set(self, node: str, offset_s: float) -> None:
        """The time of day of a node was set, and is off by so much from now on."""
        self.clocks.setdefault(node, []).append((self._clock(), offset_s))

    def refused(self, why: str) -> None:
        """The broker refused its store, though no bit of it was changed."""
        self.refusals.append(why)
        self.note(f"the broker refuses its store: {why}")

    def looked(self, queue: str, messages: int, asked_s: float, released_s: float = -math.inf) -> None:
        """So many messages were in a queue, held ones included, at some moment between ``asked_s`` and now; its last
        consumer closed at ``released_s``."""
        self.looks.append((queue, messages, asked_s, self._clock(), released_s))

    def bounded(self, what: str, number: int, most: int) -> None:
        """Record a bounded number and its bound."""
        self.bounds.append((self._clock(), what, number, most))

    def carried(self, number: int, hops: int, expected: int, duplicate_id: str | None) -> None:
        """The message of this delivery has come over so many bridges."""
        self.hops[number] = (hops, expected, duplicate_id)

    # -- reading ---------------------------------------------------------------------------------------------

    def sends_by_uid(self) -> dict[int, list[Send]]:
        """Every attempt to send each message, oldest first."""
        found: dict[int, list[Send]] = {}
        for send in self.sends.values():
            found.setdefault(send.uid, []).append(send)
        return found

    def deliveries_by_message(self) -> dict[tuple[str, int], list[Delivery]]:
        """The deliveries of each (queue, uid), oldest first, damaged ones left out."""
        found: dict[tuple[str, int], list[Delivery]] = {}
        for delivery in self.deliveries:
            if delivery.uid is not None:
                found.setdefault((delivery.queue, delivery.uid), []).append(delivery)
        return found

    def story(self, uid: int) -> str:
        """Return the events of one message, and the notes, in the order of time."""
        return "\n".join(f"{at_s:10.4f} {text}" for at_s, text in sorted(self._story(uid), key=lambda line: line[0]))

    def _story(self, uid: int) -> Iterator[tuple[float, str]]:
        yield from self.notes
        for send in self.sends.values():
            if send.uid == uid:
                what = f"send {send.op} of {uid} by {send.producer} to {', '.join(send.queues)}"
                what += f" at {send.node}" if send.node else ""
                yield send.invoked_s, f"{what} duplicate_id={send.duplicate_id} durable={send.durable}"
                if send.ended_s is not None:
                    yield send.ended_s, f"send {send.op} ended {send.outcome}"
        for delivery in self.deliveries:
            if delivery.uid == uid:
                what = f"delivery {delivery.number} from {delivery.place} to {delivery.consumer}"
                yield delivery.at_s, f"{what} sequence={delivery.sequence} redelivered={delivery.redelivered}"
                for settlement in delivery.settlements:
                    yield settlement.invoked_s, f"{settlement.kind} {settlement.op} of delivery {delivery.number}"
                    if settlement.ended_s is not None:
                        yield settlement.ended_s, f"{settlement.kind} {settlement.op} ended {settlement.outcome}"
