"""Buffered producers: messages taken outside the loop, their bound, and their outcomes.

Messages gather where they are sent; the loop takes them in batches, and confirms are counted here as they come.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable

import attrs

from meshq import client as trio_client
from meshq.client import ProducerFeed, ProducerStatistics
from meshq.errors import MeshqError
from meshq.message import Message
from meshq.portal._buffer_life import new_buffer_life
from meshq.portal._loop_thread import LoopThread


class BufferedProducer(ABC):
    """The common part of the producers for threads and for asyncio."""

    def __init__(self, loop: LoopThread, inner: trio_client.Producer) -> None:
        self.address: str = inner.address
        self._inner = inner
        self._name = f"the producer to {inner.address!r}"
        self._loop = loop
        self._feeder = ProducerFeed(inner, self._settled)
        self._items = self._feeder.items
        self._lock = threading.Lock()
        # All below is touched with that lock only.  Messages taken, and those of them that are not decided.
        self._sent = 0
        self._unconfirmed = 0
        # Whether the loop was asked to take the gathered messages.
        self._armed = False
        # Whether an error may have to be raised.
        self._failing = False
        self._life = new_buffer_life(self._name)
        # Messages that may be unconfirmed; 0 unless the producer is open.
        self._window = 0

    def __repr__(self) -> str:
        return f"<Producer {self.address!r} {self._inner.statistics().state} unconfirmed={self.unconfirmed}>"

    @property
    def unconfirmed(self) -> int:
        """Messages taken and not confirmed yet."""
        return self._unconfirmed

    def statistics(self) -> ProducerStatistics:
        """Return the state and counters of the producer."""
        with self._lock:
            return attrs.evolve(self._inner.statistics(), sent=self._sent, unconfirmed=self._unconfirmed)

    @abstractmethod
    def _wake_waiters(self) -> None:
        """With the lock: wake the waiting callers, because the window has changed or a message has failed."""

    def _arm(self) -> None:
        """With the lock: have the loop take the gathered messages."""
        self._loop.call_soon(self._loop.task, self._feed_all)
        self._armed = True

    # -- in the loop

    def _settled(self, count: int, error: MeshqError | None) -> None:
        with self._lock:
            self._unconfirmed -= count
            if error is not None:
                self._failing = True
            self._wake_waiters()

    async def _feed(self) -> None:
        """Feed the gathered messages to the loop's producer."""
        await self._feeder.feed()

    async def _feed_all(self) -> None:
        """Feed messages to the loop's producer until none is gathered."""
        while True:
            await self._feeder.feed()
            with self._lock:
                if not self._items:
                    self._armed = False
                    return

    async def _report(self) -> None:
        # What fails from here on sets it again.
        self._failing = False
        try:
            await self._feeder.report()
        except BaseException:
            # There may be more, or the producer is gone for good: the next call looks again.
            self._failing = True
            raise

    async def _close(self) -> None:
        try:
            await self._last()
        finally:
            await self._inner.close()

    async def _last(self) -> None:
        self._end()
        await self._feeder.last()

    # -- life

    def _begin(self) -> None:
        """Take messages from now on; a producer that was closed while its block was entered takes none."""
        with self._lock:
            if self._life.on("open") == "open":
                self._window = self._feeder.window

    def _end(self) -> None:
        with self._lock:
            self._life.on("close")
            self._window = 0
            self._wake_waiters()


class OpenProducers:
    """The open producers of one client, for a flush of the client."""

    def __init__(self) -> None:
        self._open: dict[BufferedProducer, None] = {}

    def add(self, producer: BufferedProducer) -> None:
        """Add a producer whose block is entered."""
        self._open[producer] = None

    def remove(self, producer: BufferedProducer) -> None:
        """Remove a producer whose block is left, if the block was entered."""
        self._open.pop(producer, None)

    async def feed(self) -> None:
        """Feed the gathered messages of all of them to the loop."""
        for producer in list(self._open):
            await producer._feed()


def in_full(messages: Iterable[bytes | Message]) -> Iterable[bytes | Message]:
    """Iterate over the messages of a call here: a generator of the caller's runs in the caller's thread."""
    return messages if isinstance(messages, (bytes, str, Message)) else list(messages)
