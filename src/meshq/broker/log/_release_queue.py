"""The release queue: entries wait from placing until the journal says that their position is durable.

Placing is the only ordering point of a node.  Entries are released strictly in the order in which they were
placed, so a queue's messages become visible in the order of their numbers, and confirms go in order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from meshq.abc import Buffer
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.errors import AddressFullError

Views = Sequence[tuple[Queue, QueueRun]]
#: Records that one record deletes on the side: their positions must fit beside a run of the largest size.
_DOOMED_MAX: Final = 1_000


class Log(Protocol):
    """The journal, as far as the broker knows it."""

    @property
    def journal_id(self) -> bytes:
        """The journal's own id, which another one never has."""

    @property
    def durable(self) -> int:
        """Everything up to this position is on disk."""

    @property
    def last(self) -> int:
        """The last position given."""

    def append_nowait(
        self,
        kind: int,
        parts: Sequence[Buffer],
        *,
        tombstone: bool = False,
        deletes: Sequence[int] = (),
        refs: Sequence[int] = (),
        lazy: bool = False,
        vital: bool = False,
    ) -> int:
        """Put a record into the open batch; returns its position.

        A record is live until another record deletes it; a tombstone is kept as long as its targets.  A full disk
        refuses new records that are not ``vital``.
        """

    def atomic_batch(self, size_bytes: int) -> AbstractContextManager[None]:
        """All records that are placed inside, ``size_bytes`` at most, are there after a crash, or none is."""

    @property
    def queued(self) -> Sized:
        """Batches that wait behind the one being written: while there are any, space is requested for all new records.

        The same object for as long as the journal lives.
        """

    @property
    def large_bytes(self) -> float:
        """New records, or groups of them, of more bytes than this are asked for first."""

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Have room made; False: ``then`` is called once, when there is some or the disk has none.

        True: there is some, or what is placed is refused.
        """

    def has_space(self, size_bytes: int) -> bool:
        """Whether a record that is written now is sure to find space on the disk."""

    def request_commit(self) -> None:
        """Commit soon, without waiting for further records: a call waits for the commit."""


class ReleaseQueue:
    """Writes records, and releases entries when their records are durable.

    Without a log every entry is released at once.
    """

    __slots__ = ("_doomed", "_entries", "_group", "_release_views", "durable", "large_bytes", "log", "queued")

    def __init__(self, log: Log | None, release_views: Callable[[Views], None]) -> None:
        self.log: Log | None = log
        #: Whether anything survives the process.
        self.durable: bool = log is not None
        #: What may take more bytes in the journal is asked for first.
        self.large_bytes: float = log.large_bytes if log is not None else math.inf
        #: While it has anything, all of it is.
        self.queued: Sized = log.queued if log is not None else ()
        self._release_views = release_views
        # (position, views that become visible, what to call then), in the order of placing; whoever is first in line
        # holds up those behind, whatever their positions.
        self._entries: deque[tuple[int, Views, Callable[[], None]]] = deque()
        # What is placed together is released together: views, and what to call then.
        self._group: tuple[list[tuple[Queue, QueueRun]], list[Callable[[], None]]] | None = None
        # Records that are not needed any more; the next record that is placed deletes them.
        self._doomed: list[int] = []

    @property
    def waiting(self) -> int:
        """Entries that are not released yet."""
        return len(self._entries)

    def has_entries_for(self, queue: Queue) -> bool:
        """Whether a run that was placed in a queue is not released yet."""
        return any(queue is one for _, views, _ in self._entries for one, _ in views)

    def pending(self) -> list[tuple[Queue, QueueRun]]:
        """Return the views that were placed and are not released yet."""
        return [pair for _, views, _ in self._entries for pair in views]

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Ask for space of so many bytes for records; return True if the caller need not wait.

        Else ``then`` is called once, in another turn: there is room as long as that call lasts, or the disk has none.
        """
        log = self.log
        if log is None or (size_bytes <= self.large_bytes and not self.queued):
            return True
        return log.request_space(size_bytes, then)

    def check_space(self, size_bytes: int) -> None:
        """Check that the disk has space for ``size_bytes``.

        Once a large record is placed, all later ones wait for its space.
        Raises:
            AddressFullError: the disk has no space.
        """
        log = self.log
        if log is not None and size_bytes > self.large_bytes and not log.has_space(size_bytes):
            raise AddressFullError(f"the disk has no room for {size_bytes} bytes of new messages at once")

    def doom(self, positions: Sequence[int]) -> None:
        """Delete these records with the next record that is written."""
        self._doomed += positions

    def write(
        self,
        kind: int,
        parts: Sequence[Buffer],
        *,
        tombstone: bool = False,
        deletes: Sequence[int] = (),
        **options: Any,
    ) -> int:
        """Place a record; returns its position, 0 without a log."""
        log = self.log
        if log is None:
            return 0
        doomed = self._doomed[:_DOOMED_MAX]
        if doomed:
            deletes = [*deletes, *doomed]
        position = log.append_nowait(kind, parts, tombstone=tombstone, deletes=deletes, **options)
        if doomed:
            del self._doomed[: len(doomed)]
        return position

    def release_after(self, position: int, views: Views, then: Callable[[], None]) -> None:
        """Release ``views`` and call ``then`` once ``position`` is durable and everything placed before is released."""
        log = self.log
        if self._group is not None:
            self._group[0].extend(views)
            self._group[1].append(then)
            return
        if log is None or (not self._entries and position <= log.durable):
            if views:
                self._release_views(views)
            then()
        else:
            self._entries.append((position, views, then))

    @contextmanager
    def atomic_batch(self, size_bytes: int) -> Iterator[None]:
        """Make all records that are written inside durable and visible together: all of them or none.

        Raises:
            AddressFullError, JournalBrokenError, ClosedError: nothing was placed.
        """
        size_bytes += 8 * len(self._doomed)
        self.check_space(size_bytes)
        with self.log.atomic_batch(size_bytes) if self.log is not None else nullcontext():
            views, calls = self._group = ([], [])
            try:
                yield
            finally:
                self._group = None
        self.release_after(self.log.last if self.log is not None else 0, views, lambda: _call_all(calls))

    def when_all_is_durable(self, then: Callable[[], None]) -> None:
        """Call ``then`` once everything that is placed now is durable."""
        if self.log is not None:
            self.log.request_commit()
            self.release_after(self.log.last, (), then)
        else:
            then()

    def durable_moved(self, position: int) -> None:
        """Release the entries up to ``position``, which is durable now."""
        entries = self._entries
        while entries and entries[0][0] <= position:
            _, views, then = entries.popleft()
            if views:
                self._release_views(views)
            then()


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
