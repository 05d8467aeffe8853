"""The records of a node's pins, which are durable after a sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from meshq.broker.records import decode_definition
from qa.grouping_model.clockwork import Clockwork

#: Seconds of a sync, and of one in so many.
SYNC_S: Final = 0.003
SLOW_S: Final = 0.8
SLOW: Final = 12


class ModelJournal:
    """A journal with records of definitions, in place of a ``ReleaseQueue``."""

    def __init__(self, clockwork: Clockwork, place: str) -> None:
        self._clockwork = clockwork
        self._rng = clockwork.rng(f"disk/{place}")
        self._slow = clockwork.swarm.on("grouping.slow_disk")
        # What is durable, and behind it what is only written: a record, and which ones it deletes.
        self._durable: dict[int, dict[str, Any]] = {}
        self._tail: deque[tuple[int, dict[str, Any], Sequence[int]]] = deque()
        self._doomed: list[int] = []
        self._last = self._durable_to = 0
        self._syncs = False
        self._waits: deque[tuple[int, Callable[[], None]]] = deque()
        # Syncs of an earlier life end nothing.
        self._life = 0

    # -- as a release queue

    def write(self, kind: Any, parts: Sequence[Any], *, deletes: Sequence[int] = (), vital: bool = False) -> int:
        """Write a record; return its position."""
        self._last += 1
        self._tail.append((self._last, decode_definition(bytes(parts[0])), [*deletes, *self._doomed]))
        self._doomed.clear()
        self._sync()
        return self._last

    def doom(self, positions: Sequence[int]) -> None:
        """Delete records with the next one that is written."""
        self._doomed += positions

    def when_all_is_durable(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all that is written is durable."""
        if self._durable_to >= self._last:
            then()
        else:
            self._waits.append((self._last, then))
            self._sync()

    # -- the disk

    def records(self) -> dict[int, dict[str, Any]]:
        """Return all records that are written."""
        found = dict(self._durable)
        for position, values, deletes in self._tail:
            found[position] = values
            for one in deletes:
                found.pop(one, None)
        return found

    def pins(self) -> dict[tuple[str, str], str]:
        """The pins that are written."""
        kept = [one for one in self.records().values() if one["kind"] == "pin"]
        doomed = {(one["queue"], one["group"]) for at in self._doomed if (one := self.records().get(at)) is not None}
        return {name: one["node"] for one in kept if (name := (one["queue"], one["group"])) not in doomed}

    def lives(self) -> dict[str, str]:
        """The nodes that are written to have introduced themselves, and their lives."""
        for one in self.records().values():
            if one["kind"] == "introduced":
                words = one["lives"].replace(",", " ").split()
                return dict(zip(words[::2], words[1::2], strict=True))
        return {}

    def _sync(self) -> None:
        if not self._syncs:
            self._syncs = True
            slow = self._slow and not self._clockwork.calm and not self._rng.randrange(SLOW)
            seconds = self._rng.random() * (SLOW_S if slow else SYNC_S)
            life, last = self._life, self._last
            self._clockwork.at(seconds, lambda: self._synced(life, last))

    def _synced(self, life: int, last: int) -> None:
        if life != self._life:
            return
        self._syncs = False
        self._make_durable(last)
        if self._last > last:
            self._sync()
        while self._waits and self._waits[0][0] <= self._durable_to:
            self._waits.popleft()[1]()

    def _make_durable(self, last: int) -> None:
        self._durable_to = last
        while self._tail and self._tail[0][0] <= last:
            position, values, deletes = self._tail.popleft()
            self._durable[position] = values
            for one in deletes:
                self._durable.pop(one, None)

    def crash(self) -> None:
        """Forget records that are not durable, or keep some."""
        self._life += 1
        self._syncs = False
        self._waits.clear()
        self._doomed.clear()
        self._make_durable(self._rng.randint(self._durable_to, self._last))
        self._tail.clear()
        self._last = self._durable_to

    def close(self) -> None:
        """Keep all of it: the node ends in peace."""
        self._make_durable(self._last)
        self.crash()
