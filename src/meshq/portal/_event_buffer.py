"""Event buffers: events of the loop, to be iterated outside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from meshq.portal._loop_thread import LoopThread

E = TypeVar("E")


class EventBuffer(ABC, Generic[E]):
    """The common part of the event streams for threads and for asyncio."""

    __slots__ = ("__weakref__", "_closed", "_events", "_lock", "_loop", "_most", "missed")

    def __init__(self, loop: LoopThread, most: int, lock: AbstractContextManager[bool]) -> None:
        self._loop = loop
        self._most = most
        self._lock = lock
        self._events: deque[E] = deque()
        self._closed = False
        #: Events that were dropped because the reader was too slow.
        self.missed: int = 0
        loop.close_at_end(self)

    @abstractmethod
    def _wake_waiters(self) -> None:
        """With the lock: wake the waiting callers, because an event has come or the stream has ended."""

    def put(self, event: E) -> None:
        """Add an event to the stream."""
        with self._lock:
            if self._closed:
                return
            if len(self._events) == self._most:
                self._events.popleft()
                self.missed += 1
            self._events.append(event)
            self._wake_waiters()

    def close(self) -> None:
        """End the stream: iteration stops after the events that are waiting."""
        with self._lock:
            self._closed = True
            self._wake_waiters()
