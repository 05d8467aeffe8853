"""Replication: the journal's part in a sink, which says how far records are durable elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from meshq.abc import ReplicatedBatch, ReplicationSink, ReplicationStart
from meshq.concurrency import first_error
from meshq.errors import JournalBrokenError
from meshq.ids import Position
from meshq.store.allocation._pending_batch import PendingBatch


class SinkFailedError(Exception):
    """A sink has failed, for the reason that is the cause of this error."""


class Replication:
    """The batches of one journal that a sink was given, and the position up to which the sink has them.

    A batch is *synced* when the journal's own disk has it.  The batches between the durable position, which is the
    lower of the two positions, and the last synced one are kept until the sink has them, too.
    """

    __slots__ = ("_failed", "_placed", "_position", "_sink", "_stop", "_waiting", "synced")

    def __init__(self, sink: ReplicationSink, start: ReplicationStart) -> None:
        self._sink = sink
        #: The last position that the sink was given.
        self._placed = start.last
        #: The last position that the sink has told.
        self._position = start.last
        #: The last position on the journal's own disk.
        self.synced: Position = start.last
        #: Batches that are synced and not durable, in order.
        self._waiting: deque[PendingBatch] = deque()
        self._stop = trio.CancelScope()
        self._failed = trio.CancelScope()
        try:
            sink.begin(start)
        except Exception as error:
            raise JournalBrokenError(f"the journal's replication failed: {error}", outcome="not_done") from error

    @property
    def durable(self) -> Position:
        """The last position that is durable here and by the sink."""
        return min(self.synced, self._position)

    @property
    def waiting(self) -> tuple[PendingBatch, ...]:
        """The batches that are on the journal's own disk, and that the sink does not have yet."""
        return tuple(self._waiting)

    def place(self, batch: PendingBatch) -> None:
        """Give the sink a batch that is about to be written.  Raises: SinkFailedError."""
        self._placed = Position(batch.last)
        with _sink_errors():
            self._sink.place(
                ReplicatedBatch(
                    first=Position(batch.first),
                    last=Position(batch.last),
                    flags=batch.flags,
                    rows=batch.rows,
                    parts=batch.parts,
                )
            )

    def sync(self, batch: PendingBatch) -> None:
        """Note that a batch is on the journal's own disk."""
        if batch.rows:
            self.synced = Position(batch.last)
        self._waiting.append(batch)

    def settled(self) -> list[PendingBatch]:
        """Take out the batches that have become durable."""
        durable, found = self.durable, []
        while self._waiting and self._waiting[0].last <= durable:
            found.append(self._waiting.popleft())
        return found

    async def run(self, advanced: Callable[[], None]) -> None:
        """Call ``advanced`` each time the sink has more, until ``stop``.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SinkFailedError: the records can't become durable by the policy of the sink.
        """
        with self._stop:
            while True:
                await self._ask()
                advanced()

    def stop(self) -> None:
        """End ``run``: the tasks of the journal are to end."""
        self._stop.cancel()

    def end(self) -> None:
        """Tell the sink that no batch follows.  Raises: SinkFailedError."""
        with _sink_errors():
            self._sink.end()

    async def finish(self, advanced: Callable[[], None], timeout_s: float) -> None:
        """Call ``advanced`` each time the sink has more, until the sink has all batches, or ``fail`` is called.

        ``timeout_s``: the time of the sink.

        Checkpoint: if the sink does not have all.
        Cancellation: the caller shields the call.
        Raises:
            SinkFailedError: the records can't become durable by the policy of the sink, or not in time.
        """
        with self._failed:
            with trio.move_on_after(timeout_s) as scope:
                while self._position < self.synced:
                    await self._ask()
                    advanced()
            if scope.cancelled_caught:
                raise SinkFailedError(
                    f"the sink has the records up to {self._position}, and not up to {self.synced}, {timeout_s:g} s"
                    " after the journal was closed"
                )

    def fail(self) -> None:
        """End ``run`` and ``finish``: the journal has failed, and nothing becomes durable any more."""
        self._stop.cancel()
        self._failed.cancel()

    async def _ask(self) -> None:
        asked = self._position
        with _sink_errors():
            position = await self._sink.durable_beyond(asked)
        if type(position) is not int or not asked < position <= self._placed:
            raise SinkFailedError(
                f"the sink told position {position!r}, which is not beyond {asked} and at most {self._placed}"
            )
        self._position = position


@contextmanager
def _sink_errors() -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # A sink with tasks of its own may fail while it is cancelled.
        first = first_error(error)
        if not isinstance(first, Exception):
            raise
        raise SinkFailedError(str(first)) from first
