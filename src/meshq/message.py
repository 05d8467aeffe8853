"""Messages to send: a body with headers and properties."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack

import attrs

from meshq import limits
from meshq.address import encodable, parse_target
from meshq.errors import BodyFormatError, SettingsError, kind_of, short, with_kind

PropertyValue = str | bytes | bool | int | float | None

PROPERTY_TYPES: Final = frozenset({str, bytes, bool, int, float, type(None)})
#: What the encoding of whole numbers can hold.
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_VALUES: Final = "str, bytes, bool, int of 64 bits, float that is a number, or None"
_NAMES: Final = f"text of 1 to {limits.PROPERTY_NAME_BYTES_MAX} bytes"
#: How deep it is looked for what JSON can't hold.
_JSON_STEPS_MAX: Final = 8
#: The content type of a body of JSON.
JSON_TYPE: Final = "application/json"


def check_body(body: object) -> bytes:
    """Return the body as bytes; other buffers are copied.

    Raises:
        SettingsError: it is nothing like bytes, or too large.  The error never shows what is in it.
    """
    if type(body) is not bytes:
        try:
            body = bytes(memoryview(body))  # type: ignore[arg-type]
        except TypeError:
            raise SettingsError("body", None, "bytes or something like bytes", shown=kind_of(body)) from None
    if len(body) > limits.MESSAGE_BYTES_MAX:
        raise SettingsError("body", None, f"at most {limits.MESSAGE_BYTES_MAX} bytes", shown=f"<{len(body)} bytes>")
    return body


def check_properties(properties: object) -> None:
    """Check the properties of a message.

    Raises:
        SettingsError: names the property that is not allowed, never its value.
    """
    if not isinstance(properties, Mapping):
        raise SettingsError("properties", None, "a mapping of names to values", shown=kind_of(properties))
    if len(properties) > limits.PROPERTIES_MAX:
        raise SettingsError(
            "properties", None, f"at most {limits.PROPERTIES_MAX}", shown=f"<{len(properties)} of them>"
        )
    for name, value in properties.items():
        if type(name) is not str:
            raise SettingsError("properties", name, f"names that are {_NAMES}", shown=f"<the name {with_kind(name)}>")
        if not encodable(name) or not 0 < len(name.encode()) <= limits.PROPERTY_NAME_BYTES_MAX:
            raise SettingsError("properties", name, f"names that are {_NAMES}", shown=f"<the name {short(name)}>")
        if not _allowed(value):
            raise SettingsError(f"properties[{name!r}]", None, _VALUES, shown=kind_of(value))


def _allowed(value: object) -> bool:
    if type(value) is int:
        return _INT_MIN <= value <= _INT_MAX
    if type(value) is float:
        return not math.isnan(value)
    if type(value) is str:
        return encodable(value)
    return type(value) in PROPERTY_TYPES


def check_duplicate_id(value: object) -> bytes:
    """A duplicate id as bytes.

    Raises:
        SettingsError: it is neither text nor bytes, or has no byte or too many.
    """
    if type(value) is str:
        try:
            data = value.encode()
        except UnicodeEncodeError:
            data = b""
    elif type(value) is bytes:
        data = value
    else:
        data = b""
    if not 0 < len(data) <= limits.DUPLICATE_ID_BYTES_MAX:
        allowed = f"str or bytes of 1 to {limits.DUPLICATE_ID_BYTES_MAX} bytes"
        raise SettingsError("duplicate_id", value, allowed, shown=f"<{len(data)} bytes>" if data else with_kind(value))
    return data


def check_text(name: str, value: object) -> str:
    """An optional header's text.

    Raises:
        SettingsError: it isn't text.
    """
    if type(value) is not str or not encodable(value):
        raise SettingsError(name, value, "str", shown=with_kind(value))
    return value


def check_durable(value: object) -> bool:
    """Whether a message is durable.

    Raises:
        SettingsError: it is neither True nor False.
    """
    if type(value) is not bool:
        raise SettingsError("durable", value, "True or False")
    return value


def check_priority(value: object) -> int:
    """A message's priority.

    Raises:
        SettingsError: it is no whole number from 0 to 9.
    """
    if type(value) is not int or not 0 <= value <= limits.PRIORITY_MAX:
        raise SettingsError("priority", value, f"a whole number from 0 to {limits.PRIORITY_MAX}")
    return value


def check_span(name: str, value: object) -> int:
    """Return a time to live or a delay in whole milliseconds, at least one.

    A time to live without an end is 0: there is nothing to be said of it.

    Raises:
        SettingsError: it is no number of seconds, or too long.
    """
    if name == "ttl" and value == math.inf:
        # As if it were not given.
        return 0
    if type(value) not in (int, float) or not 0 <= value <= limits.TIME_S_MAX:  # type: ignore[operator]
        allowed = f"0 to {limits.TIME_S_MAX} seconds, {'math.inf ' if name == 'ttl' else ''}or None"
        raise SettingsError(name, value, allowed)
    return max(1, round(value * 1000))  # type: ignore[operator]


def check_group(value: object) -> str:
    """The name of a message's group.

    Raises:
        SettingsError: it isn't text, is empty or too long.
    """
    if type(value) is not str or not encodable(value) or not 0 < len(value.encode()) <= limits.GROUP_BYTES_MAX:
        raise SettingsError("group", value, f"text of 1 to {limits.GROUP_BYTES_MAX} bytes, or None")
    return value


class MessageOrigin(NamedTuple):
    """The address and queue from which a message was moved, and the reason.

    ``reason``: "rejected", "attempts" (delivered too often), "expired", "moved", "redriven" or "unrouted" (no queue was
    left for a message that came from another node).
    """

    address: str
    queue: str
    reason: str


class MessageOptions(TypedDict, total=False):
    """The keywords of ``Message`` beside its body and its content type, for functions that hand them on."""

    properties: Mapping[str, PropertyValue] | None
    durable: bool
    priority: int
    ttl: float | None
    delay: float | None
    duplicate_id: str | bytes | None
    correlation_id: str | None
    reply_to: str | None
    group: str | None


class SendOptions(MessageOptions, total=False):
    """The keywords of ``Message`` beside its body, for functions that hand them on."""

    content_type: str | None


@attrs.frozen(kw_only=True, repr=False)
class Message:
    """A message to send, checked when it is built; the body may be given by position.

    ``properties``: what filters and readers see beside the body.  ``duplicate_id``: a second message to the same
    address with the same id is stored once.  ``correlation_id``, ``reply_to`` and ``content_type`` travel along.
    ``priority``: 0 to 9, the highest first.  ``ttl``: seconds after which it is of no use any more, ``math.inf`` as if
    none were given; ``delay``: seconds for which nobody gets it; both from when it comes to the broker.  ``group``:
    messages of one go to one consumer.
    """

    body: bytes = attrs.field(kw_only=False, converter=check_body)
    properties: Mapping[str, PropertyValue] | None = None
    durable: bool = True
    priority: int = limits.PRIORITY_DEFAULT
    ttl: float | None = None
    delay: float | None = None
    duplicate_id: str | bytes | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    group: str | None = None
    content_type: str | None = None

    def __attrs_post_init__(self) -> None:
        check_durable(self.durable)
        check_priority(self.priority)
        if self.ttl is not None:
            check_span("ttl", self.ttl)
        if self.delay is not None:
            check_span("delay", self.delay)
        if self.group is not None:
            check_group(self.group)
        if self.properties is not None:
            check_properties(self.properties)
            # What was checked stays: neither side sees later changes of the caller's dictionary.
            object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        if self.duplicate_id is not None:
            check_duplicate_id(self.duplicate_id)
        for name in ("correlation_id", "content_type"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        if self.reply_to is not None:
            parse_target(self.reply_to, "reply_to")

    @classmethod
    def json(cls, value: Any, *, content_type: str | None = JSON_TYPE, **keywords: Unpack[MessageOptions]) -> Self:
        """Make a message whose body is ``value`` as JSON text in UTF-8, without blanks.

        ``keywords``: what ``Message`` takes beside the body.

        Raises:
            SettingsError: the value is nothing that JSON can hold (a float that is no number, say); or as ``Message``.
        """
        return cls(to_json(value), content_type=content_type, **keywords)

    def __repr__(self) -> str:
        """Show size and headers of the message, never its content."""
        properties = len(self.properties) if self.properties is not None else 0
        return f"<Message of {len(self.body)} bytes, {properties} properties, durable={self.durable}>"


def to_json(value: object) -> bytes:
    """Encode a value as JSON text in UTF-8.

    Raises:
        SettingsError: JSON can't hold the value.  The error says where, by keys, and never shows the value.
    """
    text = _json_of(value)
    if text is not None:
        return text
    allowed = "None, bool, int, str, a float that is a number, and lists and dictionaries of them, without circles"
    where, wrong = "value", value
    for _ in range(_JSON_STEPS_MAX):
        inner = (
            wrong.items() if isinstance(wrong, dict) else enumerate(wrong) if isinstance(wrong, list | tuple) else ()
        )
        found = next(((key, item) for key, item in inner if _json_of(item) is None), None)
        # In a circle each holds another one that is wrong: the outermost is told.
        if found is None or found[1] is value:
            break
        where, wrong = f"{where}[{short(found[0])}]", found[1]
    raise SettingsError(where, None, allowed, shown=kind_of(wrong))


def _json_of(value: object) -> bytes | None:
    """A value as JSON text, None if JSON can't hold it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        # What these say shows parts of the value.
        return None


def from_json(body: bytes) -> Any:
    """Decode a body of JSON text in UTF-8.

    Raises:
        BodyFormatError: the body is no JSON text; says where, and shows nothing of the body.
    """
    try:
        return json.loads(body.decode(), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8"
    except RecursionError:
        problem = "nested too deep"
    except ValueError:
        problem = "a number that JSON does not know, or with too many digits"
    raise BodyFormatError(f"the body of {len(body)} bytes is no JSON: {problem}")


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def keywords_of(message: Message, *beside: object) -> dict[str, Any]:
    """The keywords of a send that mean the same as a ``Message`` given in place of a body.

    ``beside``: the values of these keywords in the same call, in the order of the fields of ``Message``.

    Raises:
        SettingsError: one of these says something: the message says all of it.
    """
    for (name, default), value in zip(_DEFAULTS.items(), beside, strict=True):
        if value is not default and value != default:
            raise SettingsError(name, value, "left out beside a Message, which says it itself")
    keywords = {name: getattr(message, name) for name in _DEFAULTS}
    if message.properties is not None:
        keywords["properties"] = dict(message.properties)
    return keywords


#: What each keyword of a send is where the caller says nothing.
_DEFAULTS: Final = {field.name: field.default for field in attrs.fields(Message) if field.name != "body"}
