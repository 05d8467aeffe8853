"""The record of a node id as the bytes of a node of ZooKeeper: JSON with a version, so that other tools show it."""

from __future__ import annotations

import json
from typing import Any, Final

from meshq.abc import QuorumRecord
from meshq.errors import RemoteProtocolError

VERSION: Final = 1
_NUMBERS: Final = ("epoch", "sequence", "claimed")
_KEYS: Final = {"version", *_NUMBERS, "in_sync", "holder"}


def encode_record(record: QuorumRecord) -> bytes:
    """Write a record down; the record zero has no bytes."""
    if record == QuorumRecord():
        return b""
    parts = {name: getattr(record, name) for name in _NUMBERS}
    return json.dumps({"version": VERSION, **parts, "in_sync": record.in_sync, "holder": record.holder}).encode()


def decode_record(data: bytes, path: str) -> QuorumRecord:
    """Read a record; ``path``: where it was found.

    Raises:
        RemoteProtocolError: it is no record of this version.
    """
    if not data:
        return QuorumRecord()
    try:
        return _record(json.loads(data))
    except ValueError as error:
        raise RemoteProtocolError(f"{path} in ZooKeeper is no record that this version reads: {error}") from error


def _record(parts: Any) -> QuorumRecord:
    if type(parts) is not dict or parts.get("version") != VERSION or set(parts) != _KEYS:
        raise ValueError(f"no record of version {VERSION}")
    numbers = {name: parts[name] for name in _NUMBERS}
    names, holder = parts["in_sync"], parts["holder"]
    if any(type(number) is not int or number < 0 for number in numbers.values()):
        raise ValueError("a number of the record is none")
    if type(names) is not list or any(type(name) is not str for name in (*names, holder)):
        raise ValueError("a name of the record is none")
    return QuorumRecord(**numbers, in_sync=tuple(names), holder=holder)
