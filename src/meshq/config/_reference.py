"""The page that lists every key of a file, drawn from the settings themselves."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Mapping, Sequence, Set
from typing import Any

from meshq.abc import BroadcastEndpoint, HAPolicy, Service
from meshq.config._keys import (
    ENDPOINTS,
    GroupName,
    Key,
    PolicyName,
    QuorumOfPolicy,
    is_class,
    is_table,
    keys_of,
    tables,
)
from meshq.settings import EncryptionKey, Secret

_HEAD = """\
# Every key of a configuration file

This page is drawn by `python tools/configuration.py` from the settings of a program, which the keys of a file are.
[How to run a broker from a file](how-to/from-a-file.md) says how it is used.

A number of seconds may be a text with a unit: `"500 ms"`, `"5 s"`, `"2 min"`, `"1 h"`, `"7 d"`.
So may a number of bytes: `"64 KiB"`, `"10 MiB"`, `"1 GiB"`.
`inf` is without a limit. A secret is `{ env = "NAME" }`, `{ file = "PATH" }` or a text.
"""
_WORDS = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    bytes: "hexadecimal digits",
    Secret: "secret",
    EncryptionKey: "secret",
    Service: "tables, see below",
    HAPolicy: "table, see below",
    QuorumOfPolicy: "table, see below",
    BroadcastEndpoint: f"table with exactly one of {', '.join(f'`{name}`' for name in ENDPOINTS)}, see below",
    PolicyName: "text: a policy's name, or `module:Class`",
    GroupName: "name of a discovery group of the file",
}


#: The meaning of unset keys that the broker works out.
_WORKED_OUT = {"memory_limit": "a quarter of the machine's memory"}


def page() -> str:
    """The page as it should be."""
    parts = [_HEAD]
    for name, kind in tables().items():
        parts.append(f"\n## {f'`{name}`' if name else 'The broker'}\n\n{_about(kind)}\n")
        parts.append("\n| key | what it is | unless given |\n| --- | --- | --- |\n")
        parts += [
            f"| `{key.name}` | {_what(key)} | {_default(key)} |\n" for key in keys_of(kind).values() if key.settable
        ]
    return "".join(parts)


def _about(kind: type[Any]) -> str:
    text = (inspect.getdoc(kind) or "").partition("Raises:")[0]
    return text.strip().replace("``", "`")


def _what(key: Key) -> str:
    if key.name == "data_dir":
        return "directory" + (
            ", or false for a broker in memory only" if type(None) in typing.get_args(key.type) else ""
        )
    units = key.units
    unit = "" if units is None else ", seconds" if "s" in units else ", bytes"
    return _kind(key.type) + unit


def _kind(kind: Any) -> str:
    if is_table(kind):
        return "table, see below"
    if kind in _WORDS:
        return _WORDS[kind]
    parts = [_kind(part) for part in typing.get_args(kind) if part not in (type(None), Ellipsis)]
    if is_class(kind, Mapping):
        if "table" in parts[1]:
            return "tables, see below"
        return f"table of {parts[1]}s" if " " not in parts[1] else f"table, each a {parts[1]}"
    if is_class(kind, Sequence) or is_class(kind, Set):
        return f"list: {parts[0]}"
    known = [part for part in parts if part]
    return "secret" if "secret" in known else " or ".join(dict.fromkeys(known))


def _default(key: Key) -> str:
    default = key.default
    if key.required:
        return "must be given"
    if default is None:
        return _WORKED_OUT.get(key.name, "not set")
    if "secret" in _kind(key.type) and default:
        return "the default of every node"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float) and default == math.inf:
        return "`inf`"
    if default in ((), frozenset()):
        return "none"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"
