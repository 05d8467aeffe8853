"""The messages of a run as filters see them: each one's properties are decoded once, however many filters look."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from meshq import limits
from meshq.broker.queue._run import StoredRun
from meshq.errors import RemoteProtocolError
from meshq.wire import RunView, decode_map

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
#: Keys of the optional headers.
_OPTIONAL: Final = {"correlation_id": "c", "content_type": "t", "group": "g"}


class RunMessages:
    """One message after the other, by ``move``: the view that a filter is given."""

    __slots__ = ("_headers", "_row", "_run", "_view", "properties")

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        self._view = RunView(run.content)
        self._row = 0
        self._headers: Mapping[str, Any] | None = None
        self.properties: Mapping[str, Any] = _NOTHING

    def move(self, row: int, *, properties: bool) -> None:
        """Be the message of this row; without ``properties`` nobody will ask for any."""
        self._row = row
        self._headers = None
        self.properties = _decoded(self._view.properties(row)) if properties else _NOTHING

    def header(self, name: str) -> Any:
        """A header of the message; None if it has none."""
        key = _OPTIONAL.get(name)
        if key is not None:
            if self._headers is None:
                self._headers = _decoded(self._view.headers(self._row))
            return self._headers.get(key)
        if name == "priority":
            return self._view.priority(self._row)
        if name == "size":
            body = self._run.body
            return self._view.size(self._row) if body is None else body.size_bytes
        if name == "durable":
            return self._run.durable
        if name == "timestamp":
            return self._run.stamp
        return self._expiration() if name == "expiration" else self._run.address

    def _expiration(self) -> int | None:
        """When it is of no use any more, ms; None: never."""
        traits = self._run.traits
        if traits is None or not traits.arrival:
            return None
        ttl = _decoded(self._view.headers(self._row)).get("x")
        return traits.arrival + ttl if type(ttl) is int else None


def _decoded(data: bytes) -> Mapping[str, Any]:
    if not data:
        return _NOTHING
    try:
        return decode_map(data, limits.PROPERTIES_BYTES_MAX, lists=False)
    except RemoteProtocolError:
        # Nobody between producer and consumer checks these bytes: a consumer will say what is wrong with them.
        return _NOTHING
