"""The msgpack headers of control frames, as typed classes: one schema per frame type.

A key that begins with ``~`` may be ignored by whoever doesn't know it; any other unknown key refuses the frame.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import attrs

from meshq import limits
from meshq.errors import LocalProtocolError
from meshq.ids import IDENTITY_BYTES
from meshq.wire._codec import decode_map, encode_map
from meshq.wire._frames import Frame, FrameType
from meshq.wire._refusals import violation

Role = Literal["client", "peer"]
H = TypeVar("H", bound="Header")


def _key(types: tuple[type, ...], *, size: int | None = None, size_max: int = 1024, **kwargs: Any) -> Any:
    return attrs.field(metadata={"types": types, "size": size, "size_max": size_max}, **kwargs)


@attrs.frozen(kw_only=True)
class Header:
    """A typed header.  Fields are the map's keys; a field without a default is required."""

    frame_type: ClassVar[FrameType]

    def encode(self) -> bytes:
        """The header as msgpack; fields that have their default are left out."""
        values = {}
        for field in attrs.fields(self.__class__):
            value = getattr(self, field.name)
            if value != field.default:
                values[field.name] = list(value) if type(value) is tuple else value
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
        fields = attrs.fields_dict(cls)
        taken: dict[str, Any] = {}
        for name, value in values.items():
            field = fields.get(name)
            if field is None:
                if name.startswith("~"):
                    continue
                raise violation("bad_header", f"{cls.frame_type.name} has no key {name[:64]!r}")
            taken[name] = _fit(cls.frame_type, field, value)
        for name, field in fields.items():
            if field.default is attrs.NOTHING and name not in taken:
                raise violation("bad_header", f"{cls.frame_type.name} lacks its key {name!r}")
        return cls(**taken)


def _fit(frame_type: FrameType, field: attrs.Attribute[Any], value: Any) -> Any:
    allowed: tuple[type, ...] = field.metadata["types"]
    if type(value) not in allowed:
        raise violation("bad_header", f"{frame_type.name} has a {type(value).__name__} under {field.name!r}")
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise violation("bad_header", f"{frame_type.name} has a negative {field.name!r}")
    if type(value) is list:
        item_types = field.metadata.get("items", (str,))
        if not all(type(item) in item_types for item in value):
            raise violation("bad_header", f"{frame_type.name} has a wrong item under {field.name!r}")
        return tuple(value)
    size = field.metadata.get("size")
    if size is not None and isinstance(value, bytes) and len(value) != size:
        raise violation("bad_header", f"{frame_type.name} has {len(value)} bytes under {field.name!r}, not {size}")
    if isinstance(value, (str, bytes)) and len(value) > field.metadata["size_max"]:
        raise violation("bad_header", f"{frame_type.name} has too long a {field.name!r}")
    return value


@attrs.frozen(kw_only=True)
class Hello(Header):
    """Client to server, first: who speaks, which protocol versions and features."""

    frame_type: ClassVar[FrameType] = FrameType.HELLO
    oldest: int = _key((int,))
    newest: int = _key((int,))
    role: str = _key((str,), default="client", size_max=16)
    label: str = _key((str,), default="", size_max=256)
    features: tuple[str, ...] = _key((list,), default=())


@attrs.frozen(kw_only=True)
class Welcome(Header):
    """Server to client: what was agreed, who the node is, how one may authenticate."""

    frame_type: ClassVar[FrameType] = FrameType.WELCOME
    version: int = _key((int,))
    node_id: bytes = _key((bytes,), size=IDENTITY_BYTES)
    node_name: str = _key((str,), size_max=256)
    features: tuple[str, ...] = _key((list,), default=())
    mechanisms: tuple[str, ...] = _key((list,), default=())


@attrs.frozen(kw_only=True)
class Authenticate(Header):
    """Client to server: the chosen mechanism and what it needs."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATE
    mechanism: str = _key((str,), size_max=32)
    data: bytes = _key((bytes,), default=b"", size_max=2048)


@attrs.frozen(kw_only=True)
class Authenticated(Header):
    """Server to client: you are who you say."""

    frame_type: ClassVar[FrameType] = FrameType.AUTHENTICATED
    data: bytes = _key((bytes,), default=b"", size_max=2048)


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
    text: str = _key((str,), default="", size_max=2048)


@attrs.frozen(kw_only=True)
class Produce(Header):
    """Open the frame's channel for sends to one address under a producer's id."""

    frame_type: ClassVar[FrameType] = FrameType.PRODUCE
    producer: bytes = _key((bytes,), size=IDENTITY_BYTES)
    address: str = _key((str,), size_max=limits.ADDRESS_BYTES_MAX * 2)


@attrs.frozen(kw_only=True)
class Consume(Header):
    """Open the frame's channel for deliveries from a queue."""

    frame_type: ClassVar[FrameType] = FrameType.CONSUME
    queue: str = _key((str,), size_max=limits.ADDRESS_BYTES_MAX * 2)
    window: int = _key((int,))
    window_bytes: int = _key((int,))


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
    arguments: tuple[Any, ...] = attrs.field(
        default=(),
        metadata={"types": (list,), "items": (str, bytes, bool, int, float, type(None)), "size_max": 0},
    )

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        names, values = self.arguments[0::2], self.arguments[1::2]
        if len(names) != len(values) or not all(type(name) is str for name in names):
            raise violation("bad_header", "the arguments of a call are not names and values in turn")
        return dict(zip(names, values, strict=True))


@attrs.frozen(kw_only=True)
class Answer(Header):
    """The answer to the call whose id is ``first``; ``code`` 0: it is done, ``values`` alternates names and values."""

    frame_type: ClassVar[FrameType] = FrameType.ANSWER
    code: int = _key((int,), default=0)
    text: str = _key((str,), default="", size_max=2048)
    values: tuple[Any, ...] = attrs.field(
        default=(),
        metadata={"types": (list,), "items": (str, bytes, bool, int, float, type(None)), "size_max": 0},
    )

    @property
    def named(self) -> dict[str, Any]:
        """The values by name."""
        names, values = self.values[0::2], self.values[1::2]
        if len(names) != len(values) or not all(type(name) is str for name in names):
            raise violation("bad_header", "the values of an answer are not names and values in turn")
        return dict(zip(names, values, strict=True))


@attrs.frozen(kw_only=True)
class Refuse(Header):
    """The run of ``messages`` messages from number ``first`` on was not taken: none of it was stored."""

    frame_type: ClassVar[FrameType] = FrameType.REFUSE
    messages: int = _key((int,))
    code: int = _key((int,))
    text: str = _key((str,), default="", size_max=2048)


@attrs.frozen(kw_only=True)
class ConsumerLost(Header):
    """The broker closed the channel's consumer."""

    frame_type: ClassVar[FrameType] = FrameType.CONSUMER_LOST
    code: int = _key((int,))
    text: str = _key((str,), default="", size_max=2048)


@attrs.frozen(kw_only=True)
class Deliver(Header):
    """What the broker says of the run it delivers.

    ``producer`` and ``number``: the id of the first message; ``sequence``: its number in its queue; both rise by
    ``step`` from message to message.  ``base``: where the first message begins in the numbering of the table's
    offsets.  ``counts``: index and delivery count in turn, for messages that may have been delivered before.
    """

    frame_type: ClassVar[FrameType] = FrameType.DELIVER
    address: str = _key((str,), size_max=limits.ADDRESS_BYTES_MAX * 2)
    producer: bytes = _key((bytes,), size=IDENTITY_BYTES)
    number: int = _key((int,))
    sequence: int = _key((int,))
    step: int = _key((int,), default=1)
    base: int = _key((int,), default=0)
    counts: tuple[int, ...] = attrs.field(default=(), metadata={"types": (list,), "items": (int,), "size_max": 0})


SCHEMAS: Final[dict[FrameType, type[Header]]] = {
    schema.frame_type: schema
    for schema in (
        Hello, Welcome, Authenticate, Authenticated, Attach, Attached, Close, Produce, Consume, Leave, Call, Answer,
        Refuse, ConsumerLost, Deliver,
    )
}  # fmt: skip


def header_of(frame: Frame, schema: type[H]) -> H:
    """The typed header of a frame."""
    return schema.decode(frame.header)
