"""The msgpack headers of control frames, as typed classes: one schema per frame type.

A key that begins with ``~`` may be ignored by whoever doesn't know it; any other unknown key refuses the frame.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeVar

import attrs

from meshq import limits
from meshq.errors import LocalProtocolError, invariant
from meshq.ids import IDENTITY_BYTES
from meshq.wire._codec import by_name, decode_map, encode_map
from meshq.wire._frames import COUNTER_MAX, FORMS, Frame, FrameType
from meshq.wire._refusals import violation

Role = Literal["client", "peer"]
H = TypeVar("H", bound="Header")

#: Bytes of an explanation: enough for a sentence, and any header that has one stays far under its limit.
TEXT_BYTES_MAX: Final = 1_024
#: ``address::queue``, both names of the largest size.
TARGET_CHARACTERS_MAX: Final = limits.ADDRESS_BYTES_MAX * 2 + 2
#: Both nonces: as many bytes as the hash has, so that no two connections ever share one.
NONCE_BYTES: Final = 32
SALT_BYTES: Final = 16
#: A proof is an HMAC with SHA-256.
PROOF_BYTES: Final = 32
_SCALARS: Final = (str, bytes, bool, int, float, type(None))


def _key(types: tuple[type, ...], *, size: int | None = None, size_max: int = 1024, **kwargs: Any) -> Any:
    """A field: the types that its value may have, and the exact or the largest length of a string."""
    return attrs.field(metadata={"types": types, "size": size, "size_max": size_max}, **kwargs)


def _list_of(*items: type, item_min: int | None = None) -> Any:
    """A field that holds a flat list; ``item_min`` bounds the numbers in it."""
    return attrs.field(default=(), metadata={"types": (list,), "items": items, "item_min": item_min})


def _clipped(text: str) -> str:
    """An explanation cut to what a header may hold: whoever says why must not fail for saying too much."""
    data = text.encode("utf-8", "replace")
    return data[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


def _text() -> Any:
    return _key((str,), default="", size_max=TEXT_BYTES_MAX, converter=_clipped)


@attrs.frozen(kw_only=True)
class Header:
    """A typed header.  Fields are the map's keys; a field without a default is required."""

    frame_type: ClassVar[FrameType]

    def encode(self) -> bytes:
        """The header as msgpack; fields that have their default are left out.

        Raises:
            LocalProtocolError: a value is not what the other side will insist on.
        """
        values = {}
        for field in _FIELDS[self.__class__]:
            value = getattr(self, field.name)
            if value != field.default:
                if type(value) is tuple:
                    value = list(value)
                problem = _problem(field, value)
                if problem is not None:
                    raise LocalProtocolError(f"{self.frame_type.name} would have {problem}")
                values[field.name] = value
        data = encode_map(values)
        if len(data) > limits.HEADER_BYTES_MAX:
            name = self.frame_type.name
            raise LocalProtocolError(
                f"the header of a {name} frame has {len(data)} bytes; allowed: {limits.HEADER_BYTES_MAX}"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The typed header in ``data``.

        Raises:
            RemoteProtocolError: it does not fit the schema.
        """
        values = decode_map(data, limits.HEADER_BYTES_MAX) if data else {}
        taken: dict[str, Any] = {}
        for field in _FIELDS[cls]:
            name = field.name
            if name in values:
                value = values.pop(name)
                problem = _problem(field, value)
                if problem is not None:
                    raise violation("bad_header", f"{cls.frame_type.name} has {problem}")
                taken[name] = tuple(value) if type(value) is list else value
            elif field.default is attrs.NOTHING:
                raise violation("bad_header", f"{cls.frame_type.name} lacks its key {name!r}")
        # What is left over is not known here.
        for name in values:
            if not name.startswith("~"):
                raise violation("bad_header", f"{cls.frame_type.name} has a key that it does not know")
        return cls(**taken)


class _Field(NamedTuple):
    name: str
    default: Any
    types: tuple[type, ...]
    size: int | None
    size_max: int
    items: tuple[type, ...]
    item_min: int | None


def _fields(schema: type[Header]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            field.name,
            field.default,
            field.metadata["types"],
            field.metadata.get("size"),
            field.metadata.get("size_max", 0),
            field.metadata.get("items", ()),
            field.metadata.get("item_min"),
        )
        for field in attrs.fields(schema)
    )


def _problem(field: _Field, value: Any) -> str | None:
    """What is wrong with a value, if anything; the value itself is never part of the answer."""
    kind = type(value)
    if kind not in field.types:
        return f"a {kind.__name__} under {field.name!r}"
    if kind is int:
        if not 0 <= value <= COUNTER_MAX:
            return f"a number under {field.name!r} that is not from 0 to {COUNTER_MAX}"
    elif kind is list:
        if not all(type(item) in field.items and item == item for item in value):
            return f"a wrong item under {field.name!r}"
        if field.item_min is not None and value and min(value) < field.item_min:
            return f"an item under {field.name!r} below {field.item_min}"
    elif kind is not bool:
        if field.size is not None and len(value) != field.size:
            return f"{len(value)} bytes under {field.name!r}, not {field.size}"
        if len(value) > field.size_max:
            return f"{len(value)} characters or bytes under {field.name!r}, more than {field.size_max}"
    return None


@attrs.frozen(kw_only=True)
class Hello(Header):
    """Client to server, first: who speaks, which protocol versions and features."""

    frame_type: ClassVar[FrameType] = FrameType.HELLO
    oldest: int = _key((int,))
    newest: int = _key((int,))
    role: str = _key((str,), default="client", size_max=16)
    label: str = _key((str,), default="", size_max=256)
    features: tuple[str, ...] = _list_of(str)


@attrs.frozen(kw_only=True)
class Welcome(Header):
    """Server to client: what was agreed, who the node is, how one may authenticate."""

    frame_type: ClassVar[FrameType] = FrameType.WELCOME
    version: int = _key((int,))
    node_id: bytes = _key((bytes,), size=IDENTITY_BYTES)
    node_name: str = _key((str,), size_max=256)
    features: tuple[str, ...] = _list_of(str)
    mechanisms: tuple[str, ...] = _list_of(str)


@attrs.frozen(kw_only=True)
class Authenticate(Header):
    """Client to server: the chosen mechanism, and what ``scram-sha-256`` begins with."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATE
    mechanism: str = _key((str,), size_max=32)
    user: str = _key((str,), default="", size_max=limits.USER_CHARACTERS_MAX)
    nonce: bytes = _key((bytes,), default=b"", size_max=NONCE_BYTES)


@attrs.frozen(kw_only=True)
class Challenge(Header):
    """Server to client: what the proof has to be made with."""

    frame_type: ClassVar[FrameType] = FrameType.CHALLENGE
    salt: bytes = _key((bytes,), size=SALT_BYTES)
    iterations: int = _key((int,))
    nonce: bytes = _key((bytes,), size=NONCE_BYTES)


@attrs.frozen(kw_only=True)
class Proof(Header):
    """Client to server: I know the password, and mean this very connection."""

    frame_type: ClassVar[FrameType] = FrameType.PROOF
    proof: bytes = _key((bytes,), size=PROOF_BYTES)


@attrs.frozen(kw_only=True)
class Authenticated(Header):
    """Server to client: you are who you say, and here is the proof that I am, too; empty for ``none``."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATED
    proof: bytes = _key((bytes,), default=b"", size_max=PROOF_BYTES)


@attrs.frozen(kw_only=True)
class Attach(Header):
    """Client to server: give me a session, or the one that I had (``session`` and its ``key``).

    ``ttl_ms``: how long the session outlives its connection.  ``received``: the highest number received.
    """

    frame_type: ClassVar[FrameType] = FrameType.ATTACH
    session: int = _key((int,), default=0)
    key: bytes = _key((bytes,), default=b"", size_max=IDENTITY_BYTES)
    received: int = _key((int,), default=0)
    ttl_ms: int = _key((int,), default=60_000)
    window_bytes: int = _key((int,), default=limits.CONFIRMATION_WINDOW_BYTES)


@attrs.frozen(kw_only=True)
class Attached(Header):
    """Server to client: the session, whether it is the old one resumed, and what of yours has arrived."""

    frame_type: ClassVar[FrameType] = FrameType.ATTACHED
    session: int = _key((int,))
    key: bytes = _key((bytes,), size=IDENTITY_BYTES)
    resumed: bool = _key((bool,), default=False)
    received: int = _key((int,), default=0)
    ttl_ms: int = _key((int,), default=60_000)


@attrs.frozen(kw_only=True)
class Close(Header):
    """Either way, last: why the connection ends.  ``code`` 0: in peace, and the session ends with it."""

    frame_type: ClassVar[FrameType] = FrameType.CLOSE
    code: int = _key((int,), default=0)
    text: str = _text()


@attrs.frozen(kw_only=True)
class Produce(Header):
    """Open the frame's channel for sends to one address under a producer's id."""

    frame_type: ClassVar[FrameType] = FrameType.PRODUCE
    producer: bytes = _key((bytes,), size=IDENTITY_BYTES)
    address: str = _key((str,), size_max=TARGET_CHARACTERS_MAX)


@attrs.frozen(kw_only=True)
class Consume(Header):
    """Open the frame's channel for deliveries from a queue; with a ``filter`` only of messages that it accepts; with a
    ``subscription`` from the queue of that name on the address ``queue``, which has the filter then.

    ``rank``: 128 more than the consumer's priority.  ``exclusive``: nobody else is to be served.
    ``browse``: look only.
    """

    frame_type: ClassVar[FrameType] = FrameType.CONSUME
    queue: str = _key((str,), size_max=TARGET_CHARACTERS_MAX)
    window: int = _key((int,))
    window_bytes: int = _key((int,))
    filter: str = _key((str,), default="", size_max=limits.FILTER_BYTES_MAX)
    subscription: str = _key((str,), default="", size_max=16)
    name: str = _key((str,), default="", size_max=limits.ADDRESS_BYTES_MAX)
    durable: bool = _key((bool,), default=False)
    rank: int = _key((int,), default=limits.CONSUMER_PRIORITIES // 2)
    exclusive: bool = _key((bool,), default=False)
    browse: bool = _key((bool,), default=False)


@attrs.frozen(kw_only=True)
class Leave(Header):
    """Close the frame's channel.  For a consumer: every delivery tag below ``handed`` reached the application."""

    frame_type: ClassVar[FrameType] = FrameType.LEAVE
    handed: int = _key((int,), default=0)


@attrs.frozen(kw_only=True)
class Call(Header):
    """An administrative call; ``first`` is its id.  ``arguments`` alternates names and values."""

    frame_type: ClassVar[FrameType] = FrameType.CALL
    operation: str = _key((str,), size_max=64)
    arguments: tuple[Any, ...] = _list_of(*_SCALARS)

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return by_name(self.arguments, "the arguments of a call")


@attrs.frozen(kw_only=True)
class Answer(Header):
    """The answer to the call whose id is ``first``; ``code`` 0: it is done, ``values`` alternates names and values."""

    frame_type: ClassVar[FrameType] = FrameType.ANSWER
    code: int = _key((int,), default=0)
    text: str = _text()
    values: tuple[Any, ...] = _list_of(*_SCALARS)

    @property
    def named(self) -> dict[str, Any]:
        """The values by name."""
        return by_name(self.values, "the values of an answer")


@attrs.frozen(kw_only=True)
class Refuse(Header):
    """The run of ``messages`` messages from number ``first`` on was not taken: none of it was stored."""

    frame_type: ClassVar[FrameType] = FrameType.REFUSE
    messages: int = _key((int,))
    code: int = _key((int,))
    text: str = _text()


@attrs.frozen(kw_only=True)
class ConsumerLost(Header):
    """The broker closed the channel's consumer; ``code`` 0: it was a browse, and has shown everything."""

    frame_type: ClassVar[FrameType] = FrameType.CONSUMER_LOST
    code: int = _key((int,))
    text: str = _text()


_DELIVER_KEYS: Final = ("address", "producer", "number", "sequence")
#: A msgpack key, and the mark of an integer of 64 bits.
_SEQUENCE_KEY: Final = b"\xa8sequence"
_UINT64: Final = 0xCF
#: What follows the key ``number``: its value, the other key and its value.
_DELIVER_TAIL: Final = struct.Struct(f">BQ{len(_SEQUENCE_KEY)}sBQ")


@lru_cache(maxsize=1024)
def _deliver_prefix(address: str, producer: bytes) -> bytes:
    """The part that is the same for all runs of a producer: up to the key ``number``."""
    whole = encode_map({"address": address, "producer": producer, "number": 0, "sequence": 0})
    return whole[: -len(_SEQUENCE_KEY) - 2]


def deliver_header(address: str, producer: bytes, number: int, sequence: int) -> bytes:
    """The encoded header of a DELIVER frame that has no more than these four, as nearly all: made for every run."""
    return _deliver_prefix(address, producer) + _DELIVER_TAIL.pack(_UINT64, number, _SEQUENCE_KEY, _UINT64, sequence)


@attrs.frozen(kw_only=True)
class Deliver(Header):
    """What the broker says of the run it delivers.

    ``producer`` and ``number``: the id of the first message; ``sequence``: its number in its queue, which rises by
    ``step`` from message to message, while ``number`` rises by ``step`` times ``stride``.  ``base``: where the first
    message begins in the numbering of the table's offsets.  ``counts``: index and delivery count in turn, for messages
    that may have been delivered before.  ``arrival``: when the broker took them (its clock, ms), if that matters.
    ``origin``: the address and queue from which they were moved, and why.
    """

    frame_type: ClassVar[FrameType] = FrameType.DELIVER
    address: str = _key((str,), size_max=TARGET_CHARACTERS_MAX)
    producer: bytes = _key((bytes,), size=IDENTITY_BYTES)
    number: int = _key((int,))
    sequence: int = _key((int,))
    step: int = _key((int,), default=1)
    stride: int = _key((int,), default=1)
    base: int = _key((int,), default=0)
    counts: tuple[int, ...] = _list_of(int, item_min=0)
    arrival: int = _key((int,), default=0)
    origin: tuple[str, ...] = _list_of(str)

    def encode(self) -> bytes:
        """As every header's; the usual one with numbers of a fixed width, so that it can be made in one step."""
        if self.counts or self.base or self.step != 1 or self.stride != 1 or self.arrival or self.origin:
            return super().encode()
        return deliver_header(self.address, self.producer, self.number, self.sequence)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """As every header's; the usual one, with nothing but the four keys that it must have, is checked at a glance.

        Raises:
            RemoteProtocolError: it does not fit the schema.
        """
        values = decode_map(data, limits.HEADER_BYTES_MAX)
        if tuple(values) == _DELIVER_KEYS:
            address, producer, number, sequence = values.values()
            if (
                type(address) is str
                and len(address) <= TARGET_CHARACTERS_MAX
                and type(producer) is bytes
                and len(producer) == IDENTITY_BYTES
                and type(number) is type(sequence) is int
                and 0 <= number <= COUNTER_MAX
                and 0 <= sequence <= COUNTER_MAX
            ):
                return cls(address=address, producer=producer, number=number, sequence=sequence)
        return super().decode(data)

    def delivery_counts(self, rows: int) -> dict[int, int]:
        """``counts`` by index, for a run of so many messages; what is missing was never delivered before.

        Raises:
            RemoteProtocolError: they are not indexes of the run, and counts, in turn.
        """
        if not self.counts:
            return {}
        indexes, counts = self.counts[0::2], self.counts[1::2]
        if len(indexes) != len(counts) or len(set(indexes)) != len(indexes) or max(indexes) >= rows:
            raise violation(
                "bad_header", "DELIVER has delivery counts that are not different indexes, and counts, in turn"
            )
        return dict(zip(indexes, counts, strict=True))


@attrs.frozen(kw_only=True)
class LinkOpening(Header):
    """Peer to server: open the frame's channel for runs that this node's store-and-forward queue holds for yours.

    ``link``: whose numbers these are; ``node_id``, ``instance``, ``node_name``: the node that speaks, and this life of
    it; ``connector``: where it may be reached.
    """

    frame_type: ClassVar[FrameType] = FrameType.LINK
    link: bytes = _key((bytes,), size=IDENTITY_BYTES)
    node_id: bytes = _key((bytes,), size=IDENTITY_BYTES)
    instance: bytes = _key((bytes,), size=IDENTITY_BYTES)
    node_name: str = _key((str,), size_max=256)
    connector: str = _key((str,), default="", size_max=TARGET_CHARACTERS_MAX)


@attrs.frozen(kw_only=True)
class Forward(Header):
    """Peer to server: what a run is, and which of the server's queues it is for.

    ``producer`` and ``number``: the id of the first message, kept for life.  The link's own numbers rise by ``step``
    from message to message, and ``number`` by ``step`` times ``stride``.  ``more``: the next run on the channel is the
    same one, and names more queues; it is stored when all have been named.  ``arrival``: when the first broker took
    them (its clock, ms), if that matters.
    """

    frame_type: ClassVar[FrameType] = FrameType.FORWARD
    address: str = _key((str,), size_max=TARGET_CHARACTERS_MAX)
    producer: bytes = _key((bytes,), size=IDENTITY_BYTES)
    number: int = _key((int,))
    step: int = _key((int,), default=1)
    stride: int = _key((int,), default=1)
    queues: tuple[int, ...] = _list_of(int, item_min=1)
    more: bool = _key((bool,), default=False)
    arrival: int = _key((int,), default=0)


@attrs.frozen(kw_only=True)
class Binding(Header):
    """Server to peer: one of its queues as it is now; ``gone``: it is no more.

    ``filter``: what it takes at all.  ``filters``: what its consumers want, if each wants something in particular.
    """

    frame_type: ClassVar[FrameType] = FrameType.BINDING
    queue: int = _key((int,))
    name: str = _key((str,), default="", size_max=TARGET_CHARACTERS_MAX)
    address: str = _key((str,), default="", size_max=TARGET_CHARACTERS_MAX)
    routing: str = _key((str,), default="anycast", size_max=16)
    consumers: int = _key((int,), default=0)
    filters: tuple[str, ...] = _list_of(str)
    filter: str = _key((str,), default="", size_max=limits.FILTER_BYTES_MAX)
    gone: bool = _key((bool,), default=False)


SCHEMAS: Final[dict[FrameType, type[Header]]] = {
    schema.frame_type: schema
    for schema in (
        Hello, Welcome, Authenticate, Challenge, Proof, Authenticated, Attach, Attached, Close, Produce, Consume,
        Leave, Call, Answer, Refuse, ConsumerLost, Deliver, LinkOpening, Forward, Binding,
    )
}  # fmt: skip


_FIELDS: Final = {schema: _fields(schema) for schema in SCHEMAS.values()}
assert SCHEMAS.keys() == {frame_type for frame_type, form in FORMS.items() if form.has_header}, "one schema each"


def header_of(frame: Frame, schema: type[H]) -> H:
    """The typed header of a frame."""
    invariant(frame.type is schema.frame_type, f"a {frame.type.name} frame is read as one")
    return schema.decode(frame.header)
