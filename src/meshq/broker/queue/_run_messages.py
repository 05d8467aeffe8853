"""The messages of a run as filters see them: each one's properties are decoded once, however many filters look."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.broker.queue._run import StoredRun
from meshq.errors import RemoteProtocolError
from meshq.selector import ABSENT, Filter, MessageView
from meshq.wire import RunView, decode_map, path_of

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
#: Keys of the optional headers.
_OPTIONAL: Final = {"correlation_id": "c", "content_type": "t", "group": "g"}
_PATH: Final = ("path", "hops", "been")


class Accepted(NamedTuple):
    """The rows that a filter accepts, of how many rows, and how much work that was, in messages."""

    rows: list[int]
    seen: int
    work: int


class RunMessages:
    """The messages of a run in turn, by ``move``: the view that a filter is given."""

    __slots__ = ("_headers", "_row", "_run", "_view", "properties")

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        self._view = RunView(run.content)
        self._row = 0
        self._headers: Mapping[str, Any] | None = None
        self.properties: Mapping[str, Any] = _NOTHING

    def move(self, row: int, *, properties: bool) -> None:
        """Move to the message of a row; without ``properties`` its properties are not read."""
        self._row = row
        self._headers = None
        self.properties = _decoded(self._view.properties(row)) if properties else _NOTHING

    def shadow(self, name: str, encoded: bytes) -> Any:
        """The property that has the name of a header; ``ABSENT`` if the message has none."""
        properties = self.properties
        if not properties:
            data = self._view.properties(self._row)
            if encoded not in data:
                return ABSENT
            properties = self.properties = _decoded(data)
        return properties.get(name, ABSENT)

    def attached(self, row: int) -> int:
        """The bytes of a message beside its body."""
        return self._view.attached(row)

    def portion(self, rows: Sequence[int], terms: int, searches: int, budget: float) -> tuple[Sequence[int], int]:
        """Which of these rows are put to filters in one step, at least one of them, and how much work that is.

        ``terms`` and ``searches``: how many names the filters look up, and how many LIKE they have.
        """
        cost = 1 + terms // limits.SCAN_TERMS
        if _work_of(len(self._run.content.body), searches) <= self._run.content.rows:
            # The usual run: nobody has to look at the size of each message.
            count = len(rows)
            if count * cost > budget:
                count = max(1, -(-int(budget) // cost))
                rows = rows[:count]
            return rows, count * cost
        work = 0
        attached = self._view.attached
        for count, row in enumerate(rows, 1):
            work += cost + _work_of(attached(row), searches)
            if work >= budget:
                return rows[:count], work
        return rows, work

    def accepted_by_path(self, verdict: Callable[[MessageView], bool | None], rows: Sequence[int]) -> list[int]:
        """The rows that a filter accepts which asks for the path alone: messages with the same headers are put to the
        filter once."""
        headers = self._view.headers_between(0, self._run.content.rows)
        known: dict[bytes, bool] = {}
        for row in rows:
            if (header := headers[row]) not in known:
                self.move(row, properties=False)
                known[header] = verdict(self) is True
        if len(known) == 1:
            # The usual run: its messages have come together.
            return list(rows) if known.popitem()[1] else []
        return [row for row in rows if known[headers[row]]]

    def header(self, name: str) -> Any:
        """A header of the message; None if it has none."""
        key = _OPTIONAL.get(name)
        if key is not None:
            return self._optional().get(key)
        if name in _PATH:
            path = path_of(self._optional())
            return path if name == "been" else len(path.steps) if name == "hops" else " ".join(path.ids) or None
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

    def _optional(self) -> Mapping[str, Any]:
        if self._headers is None:
            self._headers = _decoded(self._view.headers(self._row))
        return self._headers

    def _expiration(self) -> int | None:
        """When it is of no use any more, ms; None: never."""
        options = self._run.options
        if options is None or not options.arrival:
            return None
        ttl = _decoded(self._view.headers(self._row)).get("x")
        return options.arrival + ttl if type(ttl) is int else None


def accepted(run: StoredRun, filter: Filter, rows: Sequence[int], budget: float = math.inf) -> Accepted:
    """Put messages of a run to a filter, at least one of them and as many as a budget of work allows."""
    messages = RunMessages(run)
    verdict, properties = filter.verdict, filter.uses_properties
    part, work = messages.portion(rows, filter.terms, filter.searches, budget)
    if filter.asks_path:
        return Accepted(messages.accepted_by_path(verdict, part), len(part), work)
    found = []
    for row in part:
        messages.move(row, properties=properties)
        if verdict(messages) is True:
            found.append(row)
    return Accepted(found, len(part), work)


def _work_of(size_bytes: int, searches: int) -> int:
    return size_bytes // limits.SCAN_BYTES + size_bytes * searches // limits.SCAN_LIKE_BYTES


def _decoded(data: bytes) -> Mapping[str, Any]:
    if not data:
        return _NOTHING
    try:
        return decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False)
    except RemoteProtocolError:
        # Nobody between producer and consumer checks these bytes: a consumer will say what is wrong with them.
        return _NOTHING
