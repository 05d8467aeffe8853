"""The connection of a fanout client to one broker."""

from __future__ import annotations

from collections.abc import Callable

import trio

from meshq.client._client import Client
from meshq.client.link._events import (
    ConnectionBus,
    ConnectionEvent,
    Disconnected,
    EventSink,
    FailedOver,
    Reattached,
)
from meshq.client.link._fanout_machine import FanoutBroker, FanoutMachine
from meshq.concurrency import ChangeSignal
from meshq.errors import MeshqError


class FanoutLink(EventSink[ConnectionEvent]):
    """The connection to one broker; tells the machine of each change of it, and all who watch of each event.

    ``make``: makes a client of the broker.  ``changed``: told of every change; ``lost``: of every loss.
    """

    def __init__(
        self,
        broker: FanoutBroker,
        machine: FanoutMachine,
        make: Callable[[], Client],
        *,
        watchers: ConnectionBus,
        changed: ChangeSignal,
        lost: ChangeSignal,
    ) -> None:
        self.broker: FanoutBroker = broker
        self._machine = machine
        self._make = make
        self._watchers = watchers
        self._changed = changed
        self._lost = lost
        #: The client of the broker; a new one after each end of the last one.
        self.client: Client = make()
        #: Whether the broker is tried no more.
        self.ended: bool = False
        self._entered = False
        self._entering = trio.CancelScope()

    async def run(self) -> None:
        """Keep the connection until the broker is left, or may be tried no more.

        Checkpoint: always.  Cancellation: the client is closed.
        """
        broker = self.broker
        while broker.life.state == "connecting":
            with trio.CancelScope() as self._entering:
                await self._connected()
            self._entered = False
            self._changed.tell()
            while broker.life.state == "double":
                await self._changed.wait()
            if broker.life.state == "connecting":
                self.client = self._make()
        self.ended = True
        self._changed.tell()

    async def _connected(self) -> None:
        """Connect, and stay as long as the broker is used or owes an answer."""
        broker, client = self.broker, self.client
        client._watch(self)
        client._watchers.watch_attempts(self._attempt_failed)
        try:
            async with client:
                self._entered = True
                if client._state == "connected":
                    facts = client.statistics()
                    self._attached(facts.node_id, facts.node_name)
                while broker.hoped_for or broker.pending:
                    await self._changed.wait()
        except MeshqError as error:
            self._machine.failed(broker, error)

    def leave(self) -> None:
        """Leave the broker; an attempt to connect ends at once."""
        self._machine.left(self.broker)
        if not self._entered:
            self._entering.cancel()
        self._changed.tell()

    def _attached(self, node_id: bytes, node_name: str) -> None:
        if self.broker.hoped_for:
            self._machine.attached(self.broker, node_id, node_name)
            self._changed.tell()

    def _attempt_failed(self, error: MeshqError) -> None:
        if self.broker.hoped_for:
            self.broker.error = error

    def put(self, event: ConnectionEvent) -> None:
        """Take an event of the client's connection."""
        if isinstance(event, Disconnected):
            if self.broker.hoped_for:
                self._machine.lost(self.broker, event.reason)
                self._changed.tell()
                self._lost.tell()
        elif self._entered and isinstance(event, Reattached | FailedOver):
            self._attached(event.node_id, event.node_name)
        self._watchers.happened(event)

    def close(self) -> None:
        """Take the end of the client's events; the fanout client's own go on."""
