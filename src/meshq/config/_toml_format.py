"""Tables of a configuration as text in TOML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

Table = Mapping[str, Any]


def toml_text(table: Table) -> str:
    """Return a table of texts, numbers, lists and further tables as a document in TOML."""
    return "\n".join(_lines(table, "")) + "\n"


def _lines(table: Table, path: str) -> Iterator[str]:
    """Yield the lines of a table: the plain keys stand before the tables, which would take them."""
    tables = {key: value for key, value in table.items() if _is_table(value)}
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        inner = f"{path}.{_key(key)}" if path else _key(key)
        several = isinstance(value, list)
        for one in value if several else [value]:
            # The headers of inner tables stand for one that has nothing else.
            if several or not one or not all(map(_is_table, one.values())):
                yield from ("", f"[[{inner}]]" if several else f"[{inner}]")
            yield from _lines(one, inner)


def _is_table(value: object) -> bool:
    """Whether a value is a table with a header, or a list of such tables: a secret stands in one line."""
    if isinstance(value, list):
        return bool(value) and all(_is_table(one) for one in value)
    return isinstance(value, dict) and not isinstance(value, InLine)


class InLine(dict[str, str]):
    """A table that stands in the line of its key."""


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON leaves one control character as it is, which TOML does not take.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items())} }}"
    return "inf" if value == math.inf else repr(value)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _value(key)
