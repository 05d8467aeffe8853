"""Events of a client's connection, and the streams through which programs watch them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, Generic, Protocol, Self, TypeVar

import attrs
import trio

from meshq.errors import MeshqError
from meshq.loops import check_in_trio

#: Events kept for a program that does not look; the oldest go first.
EVENTS_MAX: Final = 256


@attrs.frozen(kw_only=True)
class ConnectionEvent:
    """An event of a client's connection.  ``at`` is seconds of trio's clock.

    ``code`` is beside those of errors: ``failover`` means connected again, ``disconnect`` that there is no connection.
    """

    code: ClassVar[str] = ""

    at: float
    peer: str

    @property
    def failed_over(self) -> bool | None:
        """The end of a failure of the connection: True: connected again, False: given up.

        None for all other events, so that of each failure one event says how it ended.
        """
        return None


@attrs.frozen(kw_only=True)
class Connected(ConnectionEvent):
    """The client has made its first link."""

    code: ClassVar[str] = "connected"

    node_id: bytes
    node_name: str


@attrs.frozen(kw_only=True)
class Redirected(ConnectionEvent):
    """The client was sent on by a balancer of the broker at ``peer``, and connects to ``url`` next."""

    code: ClassVar[str] = "redirected"

    url: str


@attrs.frozen(kw_only=True)
class Disconnected(ConnectionEvent):
    """The client has lost its link, and tries to reconnect unless ``final``."""

    code: ClassVar[str] = "disconnect"

    reason: MeshqError
    final: bool

    @property
    def failed_over(self) -> bool | None:
        """False if there will be no connection any more; None while the client tries."""
        return False if self.final else None


@attrs.frozen(kw_only=True)
class Reattached(ConnectionEvent):
    """The client has reconnected to the same node and resumed its session, with everything in flight."""

    code: ClassVar[str] = "failover"

    node_id: bytes
    node_name: str

    @property
    def failed_over(self) -> bool | None:
        """True: the client is connected again."""
        return True


@attrs.frozen(kw_only=True)
class FailedOver(ConnectionEvent):
    """The client has reconnected, to the same node or another node, with a new session."""

    code: ClassVar[str] = "failover"

    node_id: bytes
    node_name: str
    same_node: bool

    @property
    def failed_over(self) -> bool | None:
        """True: the client is connected again."""
        return True


#: The type of a stream's events.
E = TypeVar("E")
E_in = TypeVar("E_in", contravariant=True)


@attrs.frozen(kw_only=True)
class FanoutMissed(ConnectionEvent):
    """The broker at ``peer`` has not confirmed a message to ``address`` that enough other brokers have."""

    code: ClassVar[str] = "missed"

    address: str
    reason: MeshqError


class EventSink(Protocol[E_in]):
    """A receiver of events."""

    def put(self, event: E_in) -> None:
        """Add an event to the stream."""

    def close(self) -> None:
        """End the stream."""


class EventSinks(Generic[E]):
    """The sinks of events, in order of registration; a sink that the program drops is forgotten."""

    __slots__ = ("_sinks",)

    def __init__(self) -> None:
        self._sinks: list[weakref.ref[EventSink[E]]] = []

    def add(self, sink: EventSink[E]) -> None:
        """Tell it of everything from now on."""
        self._sinks.append(weakref.ref(sink))

    def put(self, event: E) -> None:
        """Add an event to the stream."""
        for one in tuple(self._sinks):
            sink = one()
            if sink is not None:
                sink.put(event)
            else:
                self._sinks.remove(one)

    def close(self) -> None:
        """End the stream."""
        sinks, self._sinks = self._sinks, []
        for one in sinks:
            if (sink := one()) is not None:
                sink.close()


class ConnectionBus:
    """The events of one client's connection, for all who watch; each may go unheard."""

    __slots__ = ("_attempts", "_sinks")

    def __init__(self) -> None:
        self._sinks: EventSinks[ConnectionEvent] = EventSinks()
        self._attempts: list[Callable[[MeshqError], None]] = []

    def watch(self, sink: EventSink[ConnectionEvent]) -> None:
        """Pass all events from now on to ``sink``."""
        self._sinks.add(sink)

    def watch_attempts(self, hear: Callable[[MeshqError], None]) -> None:
        """Call ``hear`` with the error of each attempt to connect that fails."""
        self._attempts.append(hear)

    def happened(self, event: ConnectionEvent) -> None:
        """Take an event of the connection."""
        self._sinks.put(event)

    def parted(self, how: str, error: MeshqError) -> None:
        """Note that the node has "left" or is "away"."""
        for hear in self._attempts:
            hear(error)

    def close(self) -> None:
        """End the streams of events."""
        self._sinks.close()


class EventStream(Generic[E]):
    """An async iterator of events, from the moment at which it was made.  Ends with the client or broker."""

    __slots__ = ("__weakref__", "_closed", "_events", "_lot", "_most", "_token", "missed")

    def __init__(self, most: int = EVENTS_MAX) -> None:
        self._most = most
        self._events: deque[E] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        # The loop of the reader, which may differ from the loop of the events; None: no reader yet.
        self._token: trio.lowlevel.TrioToken | None = None
        self._closed = False
        #: Events that were dropped because the reader was too slow.
        self.missed: int = 0

    def put(self, event: E) -> None:
        """Add an event to the stream."""
        if self._closed:
            return
        if len(self._events) == self._most:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """End the stream: iteration stops after the events that are waiting."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        token = self._token
        if token is None:
            return
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            self._lot.unpark_all()
            return
        # A loop that has ended has no reader.
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self._lot.unpark_all)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """The next event.

        Checkpoint: always.  Cancellation: no event is lost.
        Raises:
            StopAsyncIteration: the client is closed, or the broker has ended.
        """
        check_in_trio("EventStream")
        await trio.lowlevel.checkpoint()
        # Before it is looked: what happens from here on wakes this task.
        self._token = trio.lowlevel.current_trio_token()
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            await self._lot.park()
        return self._events.popleft()
