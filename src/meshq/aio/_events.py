"""Streams of connection events and broker notifications for tasks of asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import Self, TypeVar

from meshq.aio._loop_thread import TaskLoop
from meshq.aio._wakeup import CrossThreadWakeup
from meshq.client import EVENTS_MAX
from meshq.portal import EventBuffer

E = TypeVar("E")


class EventStream(EventBuffer[E]):
    """An async iterator of events, from the moment at which it was made.  Ends with the client or broker."""

    __slots__ = ("_wakeup",)

    def __init__(self, loop: TaskLoop, most: int = EVENTS_MAX) -> None:
        self._wakeup = CrossThreadWakeup()
        super().__init__(loop, most, threading.Lock())

    def _wake_waiters(self) -> None:
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
