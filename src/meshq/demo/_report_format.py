"""The messages between the processes of the demo: msgpack arrays, with columns for many values of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import attrs
import msgpack

#: Flags of a delivery: marked as delivered before; its parts don't fit each other.
REDELIVERED: Final = 1
ALTERED: Final = 2


@attrs.frozen
class Report:
    """A report of a process."""

    kind: ClassVar[str] = ""


@attrs.frozen
class Ready(Report):
    """The process has started; a broker adds its URL for clients, and the one for other nodes."""

    kind = "ready"
    url: str = ""
    for_nodes: str = ""


@attrs.frozen
class Role(Report):
    """The node of a pair has another role; ``without_service``: seconds for which no node served before."""

    kind = "role"
    role: str
    epoch: int
    reason: str
    without_service: float


@attrs.frozen
class InSync(Report):
    """Other nodes of a pair by replication than before have all that was confirmed; ``nodes``: how many have."""

    kind = "in_sync"
    nodes: int


@attrs.frozen
class PortTaken(Report):
    """The broker ends because another process has its port."""

    kind = "taken"


@attrs.frozen
class MeshReady(Report):
    """The broker knows all nodes and consumers of an ``AwaitMesh``."""

    kind = "met"


@attrs.frozen
class Numbers(Report):
    """The messages of a broker: ready and unacked in its queue; in total, and waiting for each other node by name.

    ``redistributed``: messages that have left its queue for consumers on other nodes, since the broker started.
    """

    kind = "numbers"
    ready: int
    delivering: int
    total: int
    waiting: dict[str, int]
    redistributed: int = 0


@attrs.frozen(kw_only=True)
class Left(Report):
    """The broker has handed everything over to the node ``target``, and ends.

    ``held``: messages that it had; ``moved``: those of them that went to that node, and not to a consumer on another
    one; ``prepared``: prepared transactions that have gone; ``large``: messages whose bodies have gone in blocks;
    ``left``: messages that no other node has.
    """

    kind = "left"
    target: str
    held: int
    moved: int
    prepared: int
    large: int
    left: int


@attrs.frozen
class Frozen(Report):
    """The broker stands still from here on."""

    kind = "frozen"


@attrs.frozen
class Progress(Report):
    """The number of rows that the producer has sent, and of confirmed ones."""

    kind = "progress"
    sent: int
    confirmed: int
    finished: bool = False


@attrs.frozen(kw_only=True)
class Delivered(Report):
    """A batch that a consumer has received, in columns."""

    kind = "delivered"
    #: The consumer's number for it.
    batch: int
    #: The machine's monotonic clock when it was handed over.
    at_ns: int
    keys: list[bytes]
    carriers: list[str]
    delays: list[int | None]
    flags: bytes
    #: The name of the consumer's node at that moment.
    node: str


@attrs.frozen
class Settled(Report):
    """The outcome of a batch's acknowledgement: a byte for each message, 1 if confirmed."""

    kind = "settled"
    batch: int
    confirmed: bytes


@attrs.frozen
class Holding(Report):
    """The consumer stops to acknowledge until the next ``AckQuota``."""

    kind = "holding"


@attrs.frozen
class Acknowledging(Report):
    """A consumer that had stopped begins to acknowledge one batch."""

    kind = "acknowledging"


@attrs.frozen
class Connection(Report):
    """A consumer has lost its connection, or has one again, to ``node``; ``resumed``: with the same session."""

    kind = "connection"
    up: bool
    resumed: bool = False
    node: str = ""


@attrs.frozen
class Prepared(Report):
    """The producer has prepared a transaction; the row at which the transaction ends."""

    kind = "prepared"
    sent: int


@attrs.frozen
class Decided(Report):
    """The producer has looked for its prepared transaction, and committed the transaction if it was there."""

    kind = "decided"
    found: bool


@attrs.frozen
class Idle(Report):
    """A consumer has received nothing for a while."""

    kind = "idle"


@attrs.frozen
class Connect(Report):
    """To a client: connect to this broker and begin."""

    kind = "connect"
    url: str


@attrs.frozen
class Limit(Report):
    """To the producer: go on up to this row."""

    kind = "limit"
    rows: int


@attrs.frozen
class Prepare(Report):
    """To a producer that has reached its limit: send so many rows in a transaction at this broker, and prepare it."""

    kind = "prepare"
    url: str
    rows: int


@attrs.frozen
class SendPages(Report):
    """To a producer that has reached its limit: send so many large messages, each with so many rows."""

    kind = "pages"
    pages: int
    rows: int


@attrs.frozen
class Decide(Report):
    """To the producer: commit the prepared transaction at this broker, if the broker has it."""

    kind = "decide"
    url: str


@attrs.frozen
class MoveTo(Report):
    """To a consumer: give unacknowledged messages back, and go on at this broker."""

    kind = "move"
    url: str


@attrs.frozen
class LeaveForGood(Report):
    """To a broker: hand everything over to another node, and end."""

    kind = "leave"


@attrs.frozen
class AckQuota(Report):
    """To a consumer: acknowledge a number of further batches (0: stop, -1: all)."""

    kind = "tickets"
    batches: int


@attrs.frozen
class AwaitMesh(Report):
    """To a broker: wait until this number of nodes, with itself, and of consumers of the queue are known."""

    kind = "meet"
    nodes: int
    consumers: int


@attrs.frozen
class AskNumbers(Report):
    """To a broker: report the numbers of its messages."""

    kind = "ask"


@attrs.frozen
class Freeze(Report):
    """To a broker: block the whole process until the next message or the end of the pipe."""

    kind = "freeze"


@attrs.frozen
class End(Report):
    """To a client: end when everything is settled."""

    kind = "end"


_KINDS: Final = {
    cls.kind: cls
    for cls in (
        *(Ready, Progress, Delivered, Settled, Holding, Acknowledging, Connection, Idle),
        *(Role, InSync, PortTaken, MeshReady, Numbers, Frozen, Left, Prepared, Decided),
        *(Connect, Limit, AckQuota, AwaitMesh, AskNumbers, Freeze, End),
        *(Prepare, SendPages, Decide, MoveTo, LeaveForGood),
    )
}


def pack(report: Report) -> bytes:
    """A report as bytes."""
    values: Sequence[Any] = [getattr(report, field.name) for field in attrs.fields(type(report))]
    packed: bytes = msgpack.packb([report.kind, *values])
    return packed


class ReportReader:
    """Reports from bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker()

    def feed(self, data: bytes | bytearray) -> Iterator[Report]:
        """Add ``data``; return the reports that are complete now."""
        self._unpacker.feed(data)
        for kind, *values in self._unpacker:
            cls = _KINDS[kind]
            yield cls(**{field.name: value for field, value in zip(attrs.fields(cls), values, strict=True)})
