"""Names that identify: nodes, sessions, producers, messages, places in the journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, NewType

from meshq.errors import SettingsError
from meshq.limits import SINK_BYTES_MAX, XID_BYTES_MAX

#: The number of a record since its journal began; the first is 1, and 0 means "nowhere".
Position = NewType("Position", int)

#: Rises each time a session is made anew or a node becomes active; older epochs are refused.
Epoch = NewType("Epoch", int)

#: The number of a message within one queue, in placing order; the first is 1; never reused.
Sequence = NewType("Sequence", int)

#: The number of a queue within its node; never reused.
QueueId = NewType("QueueId", int)

IDENTITY_BYTES = 16
#: How the ids begin by which brokers of a network know messages of topics again.
NETWORK_MARK: Final = b"\0network\0"
#: The number of a batch, of a partition and of an attempt are below this.
NUMBER_END = 1 << 63
_HEX = frozenset("0123456789abcdef")


class NodeId(bytes):
    """The identity of a node for life: sixteen random bytes in the first file of its store."""

    __slots__ = ()

    def __new__(cls, value: bytes) -> NodeId:
        if len(value) != IDENTITY_BYTES:
            raise ValueError(f"a node id has {IDENTITY_BYTES} bytes, not {len(value)}")
        return super().__new__(cls, value)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"NodeId({self.hex()})"


class MessageId(NamedTuple):
    """The id of a message, kept for life: its producer, and its number among the messages of that producer."""

    producer: bytes
    number: int

    def __str__(self) -> str:
        return f"{self.producer.hex()}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse the text of an id.

        Raises:
            ValueError: none is.
        """
        producer, _, number = text.partition("-")
        made = cls(bytes.fromhex(producer), int(number))
        if len(made.producer) != IDENTITY_BYTES or str(made) != text:
            raise ValueError(f"{text!r} is no message id")
        return made


def is_broker_id(text: object) -> bool:
    """Whether this is the id of a broker, in hexadecimal digits."""
    return type(text) is str and len(text) == 2 * IDENTITY_BYTES and _HEX.issuperset(text)


def needed_ways(ways: Iterable[Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the ways that make a difference, the shortest first.

    A way over all brokers of a shorter one makes none: it is open only where the shorter one is open.
    """
    found: dict[tuple[str, ...], frozenset[str]] = {}
    for way in sorted(map(tuple, ways), key=lambda way: (len(way), way)):
        over = frozenset(way)
        if not any(shorter <= over for shorter in found.values()):
            found[way] = over
    return list(found)


def check_xid(value: object) -> bytes:
    """Check the id of a transaction that is to be prepared; return it.

    Raises:
        SettingsError: it is none.
    """
    if type(value) is not bytes or not 0 < len(value) <= XID_BYTES_MAX:
        raise SettingsError("xid", value, f"1 to {XID_BYTES_MAX} bytes")
    return value


def check_sink(sink: object) -> str:
    """Check the name of a sink; return it.

    Raises:
        SettingsError: it is not text, empty, too long, or has characters that are not printed.
    """
    if type(sink) is str and sink and sink.isprintable() and len(sink.encode()) <= SINK_BYTES_MAX:
        return sink
    raise SettingsError("sink", sink, f"printable text of 1 to {SINK_BYTES_MAX} bytes")


def check_number(name: str, value: object) -> int:
    """Check the number of a batch, partition, attempt or stage; return it.

    Raises:
        SettingsError: it is no whole number from 0, or too large.
    """
    if type(value) is int and 0 <= value < NUMBER_END:
        return value
    raise SettingsError(name, value, f"a whole number from 0 to {NUMBER_END - 1}")
