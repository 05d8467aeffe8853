"""Streams of connection events and broker notifications for tasks of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Generic, Self, TypeVar

from meshq.aio._loop_thread import TaskLoop
from meshq.aio._wakeup import CrossThreadWakeup
from meshq.client import EVENTS_MAX

E = TypeVar("E")


class EventStream(Generic[E]):
    """An async iterator of events, from the moment at which it was made.  Ends with the client or broker."""

    __slots__ = ("__weakref__", "_closed", "_events", "_lock", "_loop", "_most", "_wakeup", "missed")

    def __init__(self, loop: TaskLoop, most: int = EVENTS_MAX) -> None:
        self._loop = loop
        self._most = most
        self._events: deque[E] = deque()
        self._lock = threading.Lock()
        self._wakeup = CrossThreadWakeup()
        self._closed = False
        #: Events that were dropped because the reader was too slow.
        self.missed: int = 0
        loop.close_at_end(self)

    def put(self, event: E) -> None:
        """Add an event to the stream."""
        with self._lock:
            if self._closed:
                return
            if len(self._events) == self._most:
                self._events.popleft()
                self.missed += 1
            self._events.append(event)
            self._wakeup.wake()

    def close(self) -> None:
        """End the stream: iteration stops after the events that are waiting."""
        with self._lock:
            self._closed = True
            self._wakeup.wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """The next event.

        Checkpoint: always.  Cancellation: no event is lost.
        Raises:
            StopAsyncIteration: the client is closed, or the broker has ended.
        """
        self._loop.check_thread()
        await asyncio.sleep(0)
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._closed:
                    raise StopAsyncIteration
                future = self._wakeup.expect()
            await self._wakeup.wait(future)
