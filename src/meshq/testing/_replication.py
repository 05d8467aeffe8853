"""A sink in memory: a test says how far the sink lags behind its journal, and when it fails."""

from __future__ import annotations

import attrs
import trio

from meshq.abc import ReplicatedBatch, ReplicationSink, ReplicationStart
from meshq.errors import MeshqError
from meshq.ids import Position


class MemorySink(ReplicationSink):
    """A sink that keeps all batches in memory.

    ``delay``: seconds after which the records that were placed are durable; ``held=True``: no record is before
    ``release``.
    """

    def __init__(self, *, delay: float = 0.0, held: bool = False) -> None:
        #: The journal, once it is open.
        self.start: ReplicationStart | None = None
        #: The batches that were placed, in order, with bytes of their own.
        self.batches: list[ReplicatedBatch] = []
        #: Whether the journal is being closed.
        self.ended: bool = False
        #: The last position that the journal was told.
        self.told: Position = Position(0)
        self._delay = delay
        self._held = held
        self._failure: MeshqError | None = None
        # The last position that may be told.
        self._durable = Position(0)
        self._changed = trio.Event()

    def begin(self, start: ReplicationStart) -> None:
        """Begin with a journal that is open."""
        self.start = start
        self.told = self._durable = start.last

    def place(self, batch: ReplicatedBatch) -> None:
        """Keep a batch."""
        copied = attrs.evolve(batch, rows=list(batch.rows), parts=[bytes(part) for part in batch.parts])
        self.batches.append(copied)
        if not self._held:
            self._move()

    async def durable_beyond(self, position: Position) -> Position:
        """Wait for the delay, or for ``release``."""
        await trio.lowlevel.checkpoint()
        while self._failure is None and self._durable <= position:
            await self._changed.wait()
        durable = self._durable
        if self._failure is None and self._delay:
            await trio.sleep(self._delay)
        if self._failure is not None:
            raise self._failure
        self.told = durable
        return durable

    def end(self) -> None:
        """Take note that no batch follows."""
        self.ended = True

    def hold(self) -> None:
        """Let no more records become durable, before ``release``."""
        self._held = True

    def release(self) -> None:
        """Let the records that were placed, and those to come, become durable."""
        self._held = False
        self._move()

    def fail(self, error: MeshqError) -> None:
        """Fail for good: no record becomes durable any more."""
        self._failure = error
        self._notify()

    @property
    def failed(self) -> bool:
        """Whether ``fail`` was called."""
        return self._failure is not None

    def payloads(self) -> list[bytes]:
        """Return the bytes of all batches, one string for each."""
        return [b"".join(bytes(part) for part in batch.parts) for batch in self.batches]

    def _move(self) -> None:
        self._durable = self.batches[-1].last if self.batches else self._durable
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
