"""The hints in a shared store: a file about its owner, and a file about each waiting node.

All of it is a hint, for operators and for the order of turns: the lock alone decides who has the store.  So a file that
can't be read says nothing, and is no error.
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import attrs

from meshq.ha._turns_plan import Registration

T = TypeVar("T")
#: Bytes of such a file at most.
HINT_BYTES_MAX: Final = 16 * 1024
VERSION: Final = 1


@attrs.frozen(kw_only=True)
class Owner:
    """The node that has a store.

    ``lease_until``: until when it may act, by the wall clock of its host, milliseconds.  ``lease_ms``: for how long it
    may act at most without writing this anew.  ``serving``: clients are served.  ``released``: it has given the store
    up; ``reason``: why.
    """

    name: str
    url: str = ""
    host: str = ""
    pid: int = 0
    node_id: str = ""
    epoch: int = 0
    lease_until: int = 0
    lease_ms: int = 0
    serving: bool = False
    released: bool = False
    reason: str = ""


def encode_hint(hint: Owner | Registration) -> bytes:
    """Return the bytes of a file."""
    return json.dumps({"version": VERSION, **attrs.asdict(hint)}, ensure_ascii=True).encode() + b"\n"


def decode_owner(data: bytes) -> Owner | None:
    """Return the owner that a file names; None: the file says nothing."""
    return _decode(data, Owner)


def decode_registration(data: bytes) -> Registration | None:
    """Return the node that waits by a file; None: the file says nothing."""
    found = _decode(data, Registration)
    return found if found is not None and found.role in ("primary", "backup") else None


def _decode(data: bytes, kind: type[T]) -> T | None:
    try:
        found: Any = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields: dict[str, Any] = {}
    for field in attrs.fields(kind):  # type: ignore[arg-type]
        value = found.get(field.name)
        allowed = {"bool": bool, "int": int}.get(str(field.type), str)
        if type(value) is not allowed:
            return None
        fields[field.name] = value
    return kind(**fields)
