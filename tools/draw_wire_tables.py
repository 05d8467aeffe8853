"""Write the tables of ``docs/formats/wire.md`` from the code that they describe: ``python tools/draw_wire_tables.py``.

Each stands between two comments, ``<!-- drawn: NAME -->`` and ``<!-- end -->``; a test compares them with the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from meshq.wire import (
    BY_NUMBER,
    FLAG_BODY_CHECKED,
    FLAG_DURABLE,
    FLAG_LARGE,
    FLAG_LAST,
    FLAG_REJECT,
    FLAG_RESENT,
    FLAG_RETURN,
    NUMBERED,
    RUN_ROW_BYTES,
    SCHEMAS,
    TRANSITIONS,
    FrameType,
    Header,
    Sender,
)
from meshq.wire._frames import FORMS

PAGE = Path(__file__).parents[1] / "docs" / "formats" / "wire.md"
FLAG_NAMES = {
    FLAG_BODY_CHECKED: "BODY_CHECKED",
    FLAG_RESENT: "RESENT",
    FLAG_DURABLE: "DURABLE",
    FLAG_RETURN: "RETURN",
    FLAG_REJECT: "REJECT",
    FLAG_LAST: "LAST",
    FLAG_LARGE: "LARGE",
}


def rows(head: str, lines: list[str]) -> str:
    """A table in Markdown."""
    return "\n".join([head, "| " + " | ".join("---" for _ in head.strip("| ").split("|")) + " |", *lines])


def frames() -> str:
    """Every frame type: who sends it, and which fields it uses."""
    events = [event for table in TRANSITIONS.values() for event in table]
    lines = []
    for frame_type in sorted(FrameType):
        form = FORMS[frame_type]
        senders = {who for who, frame in events if frame is frame_type}
        who = (
            "both" if {Sender.SERVER, Sender.CLIENT} <= senders else "server" if Sender.SERVER in senders else "client"
        )
        channel = {True: "channel", False: "", None: "(channel)"}[form.has_channel]
        table = {0: "", RUN_ROW_BYTES: "run rows"}.get(form.row_bytes, "ranges")
        uses = [
            channel,
            "number" if frame_type in NUMBERED else "",
            "first" if form.has_first else "",
            "stamp" if form.has_stamp else "",
            "header" if form.has_header else "",
            f"≤ {form.rows_max:,} {table}" if table else "",
            "body" if form.has_body else "",
        ]
        flags = ", ".join(name for flag, name in FLAG_NAMES.items() if form.flags & flag)
        lines.append(f"| {int(frame_type)} | {frame_type.name} | {who} | {', '.join(filter(None, uses))} | {flags} |")
    return rows("| type | name | from | uses | flags |", lines)


def value_of(field: attrs.Attribute[Any]) -> str:
    """What a header's key may hold."""
    (kind,) = field.metadata["types"]
    if kind is list:
        items = field.metadata["items"]
        kinds = "scalars" if len(items) > 1 else {str: "text", int: "whole numbers"}[items[0]]
        return f"list of {kinds}"
    if kind is int:
        return "whole number"
    if kind is bool:
        return "boolean"
    size, size_max = field.metadata.get("size"), field.metadata["size_max"]
    word = "name" if field.metadata.get("named") else "text" if kind is str else "bytes"
    return f"{word}, {size if size is not None else f'≤ {size_max:,}'}"


def default_of(field: attrs.Attribute[Any]) -> str:
    """What a key that is left out means."""
    if field.default is attrs.NOTHING:
        return "required"
    return {"": "empty", b"": "empty", (): "empty"}.get(field.default, str(field.default).lower())


def keys(schema: type[Header]) -> list[str]:
    """The keys of one header."""
    name = schema.frame_type.name
    return [
        f"| {name} | `{field.metadata.get('key') or field.name}` | {value_of(field)} | {default_of(field)} |"
        for field in attrs.fields(schema)
    ]


def headers() -> str:
    """Every key of every header."""
    lines = [line for frame_type in sorted(SCHEMAS) for line in keys(SCHEMAS[frame_type])]
    return rows("| frame | key | value | if it is left out |", lines)


def refusals() -> str:
    """The registry."""
    lines = []
    for number, entry in sorted(BY_NUMBER.items()):
        marks = ("connection closed" if entry.closes else "", "may succeed later" if entry.may_retry else "")
        ends = ", ".join(filter(None, marks))
        lines.append(f"| {number} | `{entry.name}` | {entry.sentence} | `{entry.error.__name__}` | {ends} |")
    return rows("| number | name | sentence | error on the other side | |", lines)


TABLES: dict[str, Callable[[], str]] = {"frames": frames, "headers": headers, "refusals": refusals}


def redrawn(page: str) -> str:
    """The page with its tables as they should be."""
    for name, draw in TABLES.items():
        pattern = re.compile(rf"(<!-- drawn: {name} -->\n).*?(<!-- end -->)", re.S)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"there is not one place for the table of {name}")
        table = draw()
        page = pattern.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
