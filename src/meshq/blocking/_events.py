"""Streams of connection events and broker notifications for threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Self, TypeVar

from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import EVENTS_MAX

E = TypeVar("E")


class EventStream(Generic[E]):
    """An iterator of events, from the moment at which it was made.  Ends with the client or broker."""

    __slots__ = ("__weakref__", "_changed", "_closed", "_events", "_loop", "_most", "missed")

    def __init__(self, loop: ThreadLoop, most: int = EVENTS_MAX) -> None:
        self._loop = loop
        self._most = most
        self._events: deque[E] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        #: Events that were dropped because the reader was too slow.
        self.missed: int = 0
        loop.close_at_end(self)

    def put(self, event: E) -> None:
        """Add an event to the stream."""
        with self._changed:
            if self._closed:
                return
            if len(self._events) == self._most:
                self._events.popleft()
                self.missed += 1
            self._events.append(event)
            self._changed.notify()

    def close(self) -> None:
        """End the stream: iteration stops after the events that are waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        """The next event.  An interrupt loses none.

        Raises:
            StopIteration: the client is closed, or the broker has ended.
        """
        self._loop.check_thread()
        with self._changed:
            while not self._events:
                if self._closed:
                    raise StopIteration
                self._changed.wait()
            return self._events.popleft()
