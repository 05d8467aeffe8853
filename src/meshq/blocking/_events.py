"""What happens to a client's connection, as an iterator that a thread can watch."""

from __future__ import annotations

import threading
from collections import deque
from typing import Self

from meshq.blocking._loop import Loop
from meshq.client import EVENTS_MAX, Event


class EventStream:
    """An iterator of events, from the moment at which it was made.  Ends when the client is closed."""

    __slots__ = ("_changed", "_closed", "_events", "_loop", "missed")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        #: Events that were dropped because nobody looked.
        self.missed = 0
        loop.at_end(self.close)

    def put(self, event: Event) -> None:
        """Something has happened."""
        with self._changed:
            if len(self._events) == EVENTS_MAX:
                self._events.popleft()
                self.missed += 1
            self._events.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more will happen."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._loop.not_at_end(self.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """The next event.  An interrupt loses none.

        Raises:
            StopIteration: the client is closed.
        """
        self._loop.check_thread()
        with self._changed:
            while not self._events:
                if self._closed:
                    raise StopIteration
                self._changed.wait()
            return self._events.popleft()
