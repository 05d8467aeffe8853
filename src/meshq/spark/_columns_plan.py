"""The columns of rows that are read and written, with their types as Spark writes these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from meshq.errors import SettingsError
from meshq.spark._options_plan import nearest

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
#: What ``properties`` may hold in a row that is written.
PROPERTY_TYPES: Final = ("string", "binary", "boolean", "bigint", "int", "double")


class Column(NamedTuple):
    """A column of rows that are read; ``group``: the option that adds it, empty for those that are always there."""

    name: str
    type: str
    nullable: bool
    group: str = ""


#: What is read, in order.
SOURCE: Final = (
    Column("key", "binary", True),
    Column("value", "binary", False),
    Column("topic", "string", False),
    Column("partition", "int", False),
    Column("offset", "bigint", False),
    Column("timestamp", "timestamp", False),
    Column("headers", HEADERS_TYPE, False, "includeHeaders"),
    Column("node", "string", False, "includeMetadata"),
    Column("message_id", "string", False, "includeMetadata"),
    Column("delivery_count", "int", False, "includeMetadata"),
    Column("priority", "int", False, "includeMetadata"),
    Column("expiration", "timestamp", True, "includeMetadata"),
    Column("correlation_id", "string", True, "includeMetadata"),
    Column("reply_to", "string", True, "includeMetadata"),
    Column("content_type", "string", True, "includeMetadata"),
    Column("duplicate_id", "binary", True, "includeMetadata"),
    Column("group_id", "string", True, "includeMetadata"),
    Column("durable", "boolean", False, "includeMetadata"),
    Column("properties", "map<string,string>", False, "includeMetadata"),
)
#: What may be written, and the types that it may have.
SINK: Final[dict[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "headers": (HEADERS_TYPE,),
    "properties": (),
    "priority": ("int",),
    "ttl_ms": ("bigint",),
    "delay_ms": ("bigint",),
    "durable": ("boolean",),
    "group_id": ("string",),
    "duplicate_id": ("binary", "string"),
    "correlation_id": ("string",),
    "reply_to": ("string",),
    "content_type": ("string",),
}


def columns_read(groups: frozenset[str]) -> tuple[Column, ...]:
    """The columns that are read with these options."""
    return tuple(column for column in SOURCE if not column.group or column.group in groups)


def ddl_of(columns: Sequence[Column]) -> str:
    """The schema of columns as a text that Spark reads."""
    return ", ".join(f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}" for column in columns)


def check_read(fields: Sequence[tuple[str, str]]) -> None:
    """See that the columns that a program asks for are there, with these types.

    Raises:
        SettingsError: one is not; names it.
    """
    known = {column.name: column for column in SOURCE}
    for name, kind in fields:
        if name not in known:
            raise nearest("schema", name, known, "columns of a read")
        if kind != known[name].type:
            raise SettingsError(f"schema[{name!r}]", kind, known[name].type)


def check_written(fields: Sequence[tuple[str, str]], *, topic: bool) -> None:
    """See that these columns can be written; ``topic``: whether the option says where to.

    Raises:
        SettingsError: a column is missing, unknown or of a wrong type; names it.
    """
    names = [name for name, _ in fields]
    for name, kind in fields:
        if name not in SINK:
            raise nearest("column", name, SINK, "columns of a write")
        if names.count(name) > 1:
            raise SettingsError("column", name, "each column once")
        if name == "properties":
            _check_properties(kind)
        elif kind not in SINK[name]:
            raise SettingsError(f"column {name!r}", kind, " or ".join(SINK[name]))
    if "value" not in names:
        raise SettingsError(
            "column", None, "a column 'value', which is the body of the message", shown="'value' missing"
        )
    if not topic and "topic" not in names:
        raise SettingsError("topic", None, "the option topic, or a column 'topic', which is the address to send to")


def _check_properties(kind: str) -> None:
    allowed = f"map<string,T> or a struct, with values of {', '.join(PROPERTY_TYPES)}"
    if kind.startswith("map<string,"):
        values = [kind.removeprefix("map<string,").removesuffix(">")]
    elif kind.startswith("struct<"):
        inner = kind.removeprefix("struct<").removesuffix(">")
        values = [part.rpartition(":")[2] for part in inner.split(",")] if inner else []
    else:
        raise SettingsError("column 'properties'", kind, allowed)
    if not set(values) <= set(PROPERTY_TYPES):
        raise SettingsError("column 'properties'", kind, allowed)
