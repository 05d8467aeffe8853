"""Streams of connection events and broker notifications for threads."""

from __future__ import annotations

import threading
from typing import Self, TypeVar

from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import EVENTS_MAX
from meshq.portal import EventBuffer

E = TypeVar("E")


class EventStream(EventBuffer[E]):
    """An iterator of events, from the moment at which it was made.  Ends with the client or broker."""

    __slots__ = ("_changed",)

    def __init__(self, loop: ThreadLoop, most: int = EVENTS_MAX) -> None:
        self._changed = threading.Condition(threading.Lock())
        super().__init__(loop, most, self._changed)

    def _wake_waiters(self) -> None:
        self._changed.notify_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        """The next event.

        Interrupted: no event is lost.
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
