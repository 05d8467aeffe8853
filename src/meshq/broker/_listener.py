"""The acceptors of a node: they listen, and give every connection its tasks."""

from __future__ import annotations

import logging

import trio

from meshq import abc
from meshq.broker._connection import StreamConnection
from meshq.broker._connection_machine import ConnectionCounts
from meshq.broker._core import Core
from meshq.broker._sessions import Sessions
from meshq.endpoint import Endpoint
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.settings import Acceptor

_log = logging.getLogger("meshq.broker")
#: Seconds to wait when the system has no room for a connection (too many open files).
_REFUSED_PAUSE_S = 0.1


class Listeners:
    """All acceptors of a node, and the connections that came through them."""

    def __init__(self, core: Core, sessions: Sessions, network: abc.Network, counts: ConnectionCounts) -> None:
        self._core = core
        self._sessions = sessions
        self._network = network
        self._counts = counts
        self._open: list[abc.Listener] = []
        self._connections: dict[StreamConnection, None] = {}
        #: The URLs that are really bound.
        self.urls: list[str] = []

    @property
    def connections(self) -> list[StreamConnection]:
        """The connections that are open."""
        return list(self._connections)

    async def listen(self, acceptors: tuple[Acceptor, ...], nursery: trio.Nursery) -> None:
        """Bind every acceptor and begin to accept.

        Checkpoint: always.
        Cancellation: what was bound stays bound until ``close``.
        Raises:
            ConnectionBrokenError: an address can't be bound.
        """
        for acceptor in acceptors:
            endpoint = acceptor.endpoint
            try:
                listener = await self._network.listen(endpoint.host, endpoint.port)
            except OSError as error:
                raise ConnectionBrokenError(f"{acceptor.url} can't be bound: {error}", outcome="not_done") from error
            self._open.append(listener)
            self.urls.append(str(Endpoint("tcp", endpoint.host, listener.port)))
            nursery.start_soon(self._accept, listener, acceptor, nursery)

    async def _accept(self, listener: abc.Listener, acceptor: Acceptor, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except ClosedError:
                return
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error, extra={"event": "accept_refused"})
                await trio.sleep(_REFUSED_PAUSE_S)
                continue
            nursery.start_soon(self._serve, stream, acceptor)

    async def _serve(self, stream: abc.Stream, acceptor: Acceptor) -> None:
        local = acceptor.endpoint.loopback
        trusted = local or acceptor.insecure
        connection = StreamConnection(self._core, self._sessions, stream, self._counts, local=local, trusted=trusted)
        self._connections[connection] = None
        try:
            await connection.serve()
        finally:
            del self._connections[connection]

    def close(self) -> None:
        """Accept no more."""
        for listener in self._open:
            listener.close()
        self._open.clear()
