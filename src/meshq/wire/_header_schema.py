"""The base of all headers of control frames: a flat map with a schema, checked when it is encoded and decoded."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, Self

import attrs

from meshq import limits
from meshq.address import is_name
from meshq.errors import LocalProtocolError
from meshq.wire._frames import COUNTER_MAX, FrameType
from meshq.wire._msgpack import decode_map, encode_map
from meshq.wire._refusals import violation

#: Bytes of an explanation: enough for a sentence, and any header that has one stays far under its limit.
TEXT_BYTES_MAX: Final = 1_024


def scalar(
    types: tuple[type, ...], *, size: int | None = None, size_max: int = 1024, key: str = "", **kwargs: Any
) -> Any:
    """Define a field: the types of its value, and the exact or the largest length of a string.

    ``key``: its key in the map, if that is not its name.
    """
    return attrs.field(metadata={"types": types, "size": size, "size_max": size_max, "key": key}, **kwargs)


def list_of(*items: type, item_min: int | None = None, key: str = "") -> Any:
    """Define a field with a flat list; ``item_min`` bounds the numbers in it.

    ``key``: its key in the map, if that is not its name.
    """
    return attrs.field(default=(), metadata={"types": (list,), "items": items, "item_min": item_min, "key": key})


def _one_line(text: str) -> str:
    """Cut an explanation to the length that a header may hold.

    Explanations of the other side end in errors and logs.  What can't be printed is escaped, as Python writes it in
    a literal: the other side adds no line to a log, and nothing that a terminal obeys.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text.encode()[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


def name_of_node() -> Any:
    """Define a required field for the name of a node, checked as the name of a ``Broker`` is."""
    named = {"types": (str,), "size": None, "size_max": limits.NODE_NAME_CHARACTERS_MAX, "named": True}
    return attrs.field(metadata=named)


def sentence() -> Any:
    """Define a field for an explanation, in one line and cut to its longest length."""
    return scalar((str,), default="", size_max=TEXT_BYTES_MAX, converter=_one_line)


@attrs.frozen(kw_only=True)
class Header:
    """A typed header.  Fields are the map's keys, unless they name another; a field without a default is required."""

    frame_type: ClassVar[FrameType]

    def encode(self) -> bytes:
        """Encode the header as msgpack; fields that have their default are left out.

        Raises:
            LocalProtocolError: a value is not what the other side will insist on.
        """
        values = {}
        for field in _fields(self.__class__):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                if type(value) is tuple:
                    value = list(value)
                problem = _problem(field, value)
                if problem is not None:
                    raise LocalProtocolError(f"{self.frame_type.name} would have {problem}")
                values[field.key] = value
        data = encode_map(values)
        if len(data) > limits.HEADER_BYTES_MAX:
            name = self.frame_type.name
            raise LocalProtocolError(
                f"the header of a {name} frame has {len(data)} bytes; allowed: {limits.HEADER_BYTES_MAX}"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the typed header in ``data``.

        Raises:
            RemoteProtocolError: it does not fit the schema.
        """
        values = decode_map(data, limits.HEADER_BYTES_MAX) if data else {}
        taken: dict[str, Any] = {}
        for field in _fields(cls):  # type: ignore[arg-type]
            name = field.name
            if field.key in values:
                value = values.pop(field.key)
                problem = _problem(field, value)
                if problem is not None:
                    raise violation("bad_header", f"{cls.frame_type.name} has {problem}")
                taken[name] = tuple(value) if type(value) is list else value
            elif field.default is attrs.NOTHING:
                raise violation("bad_header", f"{cls.frame_type.name} lacks its key {field.key!r}")
        # What is left over is not known here.
        for name in values:
            if not name.startswith("~"):
                raise violation("bad_header", f"{cls.frame_type.name} has a key that it does not know")
        return cls(**taken)


class _Field(NamedTuple):
    name: str
    key: str
    default: Any
    types: tuple[type, ...]
    size: int | None
    size_max: int
    items: tuple[type, ...]
    item_min: int | None
    named: bool


@cache
def _fields(schema: Any) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            field.name,
            field.metadata.get("key") or field.name,
            field.default,
            field.metadata["types"],
            field.metadata.get("size"),
            field.metadata.get("size_max", 0),
            field.metadata.get("items", ()),
            field.metadata.get("item_min"),
            field.metadata.get("named", False),
        )
        for field in attrs.fields(schema)
    )


def _problem(field: _Field, value: Any) -> str | None:
    """Return the problem with a value, or None; the text never contains the value itself."""
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
        if field.named and not is_name(value):
            return f"a text under {field.name!r} that is no name"
    return None
