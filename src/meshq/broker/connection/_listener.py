"""The acceptors of a node: they listen, and give every connection its tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from meshq import abc
from meshq.broker.connection._connection_bounds_plan import ConnectionBounds
from meshq.broker.connection._connection_guard_machine import ConnectionGuard, address_of
from meshq.broker.connection._link_server import LinkServer
from meshq.broker.connection._stream_connection import HANDSHAKE_S, StreamConnection
from meshq.endpoint import Endpoint
from meshq.errors import ClosedError, ConnectionBrokenError, SecurityError
from meshq.logs import logger
from meshq.settings import Acceptor
from meshq.wire import BY_NAME, Close, Frame, FrameType, encode

_log = logger("broker")
#: Seconds to wait when the system has no room for a connection (too many open files): what waits to be accepted stays
#: readable, so without a pause this would be a busy loop.
_REFUSED_PAUSE_S = 0.1


class _Entrance(NamedTuple):
    """An acceptor, and its side of TLS if it has one."""

    acceptor: Acceptor
    side: abc.TlsSide | None


class _Arrived(NamedTuple):
    """Where a connection has come from, and its number."""

    address: str
    number: int


class Listeners:
    """All acceptors of a node, and the connections that came through them."""

    def __init__(
        self,
        links: LinkServer,
        network: abc.Network,
        *,
        tls: abc.Tls | None = None,
        bounds: ConnectionBounds | None = None,
    ) -> None:
        self._links = links
        self._network = network
        self._tls = tls
        self._guard = ConnectionGuard(bounds)
        # Connections that came over the network, by number, while they are there; and the last number given.
        self._scopes: dict[int, trio.CancelScope] = {}
        self._last = 0
        self._open: list[abc.Listener] = []
        # Where connections are served, once the node listens; and whether it accepts no more.
        self._nursery: trio.Nursery | None = None
        self._closed = False
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
            SettingsError: the certificate of an acceptor can't be used.
        """
        self._nursery = nursery
        for acceptor in acceptors:
            endpoint = acceptor.endpoint
            side = None
            if acceptor.tls is not None:
                assert self._tls is not None
                side = self._tls.server(acceptor.tls)
            try:
                listener = await self._network.listen(endpoint.host, endpoint.port)
            except OSError as error:
                raise ConnectionBrokenError(f"{acceptor.url} can't be bound: {error}", outcome="not_done") from error
            self._open.append(listener)
            self.urls.append(str(Endpoint(endpoint.scheme, endpoint.host, listener.port)))
            nursery.start_soon(self._accept, listener, _Entrance(acceptor, side), nursery)

    async def _accept(self, listener: abc.Listener, entrance: _Entrance, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except ClosedError:
                return
            except OSError as error:
                self._links.warn("accept_refused", f"no connection can be accepted: {error}")
                await trio.sleep(_REFUSED_PAUSE_S)
                continue
            address = address_of(stream.peer)
            self._last += 1
            arrival = self._guard.arrived(address, self._last, trusted=self._trusts(entrance))
            if arrival.refused:
                # Here and not in a task of its own: many of them cost no more than that they are closed.
                self._turn_away(stream, arrival.refused, tls=entrance.side is not None)
                continue
            if arrival.displaced is not None:
                self._displace(arrival.displaced)
            self._scopes[self._last] = trio.CancelScope()
            nursery.start_soon(self._serve, stream, entrance, _Arrived(address, self._last))

    def _trusts(self, entrance: _Entrance) -> bool:
        """Whether clients of an acceptor need no login."""
        return not self._links.asks_clients and (entrance.acceptor.endpoint.loopback or entrance.acceptor.insecure)

    def _displace(self, number: int) -> None:
        """End a connection that has no session, in favour of a new one."""
        self._links.counts.turned_away += 1
        self._links.warn("turned_away", "connections without a session are ended, to make room for others")
        scope = self._scopes.get(number)
        if scope is not None:
            scope.cancel()

    async def _serve(self, stream: abc.Stream, entrance: _Entrance, arrived: _Arrived) -> None:
        entered = partial(self._guard.settled, *arrived)
        try:
            with self._scopes[arrived.number]:
                shaken = await self._shake(stream, entrance, arrived.address)
                if shaken is not None:
                    stream = shaken
                    connection = self._connection(stream, entrance, entered)
                    await self._attend(connection, arrived.address)
        finally:
            del self._scopes[arrived.number]
            entered()
            self._guard.gone()
            stream.close()

    async def _shake(self, stream: abc.Stream, entrance: _Entrance, address: str) -> abc.Stream | None:
        """Wait for the delay and the TLS handshake; return the stream to serve, or None."""
        try:
            wait = self._guard.delay(address, trio.current_time())
            if wait:
                await trio.sleep(wait)
            if entrance.side is not None:
                with trio.fail_after(HANDSHAKE_S):
                    return await entrance.side.wrap(stream)
        except (ConnectionBrokenError, SecurityError, trio.TooSlowError) as error:
            _log.debug("no TLS with %s: %s", stream.peer, error, extra={"event": "tls_failed"})
            return None
        return stream

    def _connection(self, stream: abc.Stream, entrance: _Entrance, entered: Callable[[], None]) -> StreamConnection:
        return StreamConnection(
            self._links,
            stream,
            local=entrance.acceptor.endpoint.loopback,
            trusted=self._trusts(entrance),
            entered=entered,
            redirect_to=entrance.acceptor.redirect_to,
        )

    def take(self, stream: abc.Stream) -> None:
        """Serve a client in the same process, without a login."""
        if self._nursery is None or self._closed:
            stream.close()
        else:
            self._nursery.start_soon(self._serve_local, stream)

    async def _serve_local(self, stream: abc.Stream) -> None:
        connection = StreamConnection(self._links, stream, local=True, trusted=True)
        self._connections[connection] = None
        try:
            await connection.serve()
        finally:
            del self._connections[connection]
            stream.close()

    async def _attend(self, connection: StreamConnection, address: str) -> None:
        self._connections[connection] = None
        try:
            await connection.serve()
        finally:
            del self._connections[connection]
            if connection.server.handshake.denied:
                self._guard.failed(address, trio.current_time())

    def _turn_away(self, stream: abc.Stream, why: str, *, tls: bool) -> None:
        """Say that there are too many already; under TLS just close: it is not worth the handshake to say it in."""
        self._links.counts.turned_away += 1
        self._links.warn("turned_away", f"connections are turned away: {why}")
        entry = BY_NAME["crowded"]
        close = Close(code=entry.number, text=f"{entry.sentence}: {why}")
        try:
            if not tls:
                stream.send_nowait(encode(Frame(FrameType.CLOSE, header=close.encode())))
        except ConnectionBrokenError:
            _log.debug("%s has gone before it was turned away", stream.peer, extra={"event": "turned_away"})
        finally:
            stream.close()

    def close(self) -> None:
        """Accept no more."""
        self._closed = True
        for listener in self._open:
            listener.close()
        self._open.clear()
