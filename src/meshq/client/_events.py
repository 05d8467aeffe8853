"""What happens to a client's connection, as a stream that a program can watch."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol, Self

import attrs
import trio

from meshq.errors import MeshqError

#: Events kept for a program that does not look; the oldest go first.
EVENTS_MAX: Final = 256


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened to the connection.  ``at`` is seconds of trio's clock."""

    at: float
    peer: str


@attrs.frozen(kw_only=True)
class Connected(Event):
    """The first connection is made."""

    node_id: bytes
    node_name: str


@attrs.frozen(kw_only=True)
class Disconnected(Event):
    """The connection is lost; the client goes on trying unless ``final``."""

    reason: MeshqError
    final: bool


@attrs.frozen(kw_only=True)
class Reattached(Event):
    """Connected to the same node again, and the session with all that was under way was resumed."""

    node_id: bytes
    node_name: str


@attrs.frozen(kw_only=True)
class FailedOver(Event):
    """Connected again, to the same node or another one, with a new session."""

    node_id: bytes
    node_name: str
    same_node: bool


class EventSink(Protocol):
    """Something that is told what happens."""

    def put(self, event: Event) -> None:
        """Something has happened."""

    def close(self) -> None:
        """Nothing more will happen."""


class EventStream:
    """An async iterator of events, from the moment at which it was made.  Ends when the client is closed."""

    __slots__ = ("_closed", "_events", "_lot", "missed")

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._closed = False
        #: Events that were dropped because nobody looked.
        self.missed = 0

    def put(self, event: Event) -> None:
        """Something has happened."""
        if len(self._events) == EVENTS_MAX:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._lot.unpark()

    def close(self) -> None:
        """Nothing more will happen."""
        self._closed = True
        self._lot.unpark_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event.

        Checkpoint: always.  Cancellation: no event is lost.
        Raises:
            StopAsyncIteration: the client is closed.
        """
        await trio.lowlevel.checkpoint()
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            await self._lot.park()
        return self._events.popleft()
