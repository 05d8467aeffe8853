"""The acceptors of a node: they listen, and give every connection its tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import trio

from meshq import abc
from meshq.broker._core import Core
from meshq.broker.session._connection import HANDSHAKE_S, StreamConnection
from meshq.broker.session._connection_machine import ConnectionCounts
from meshq.broker.session._credentials import Credentials
from meshq.broker.session._guard_machine import Guard, address_of
from meshq.broker.session._sessions import Sessions
from meshq.endpoint import Endpoint
from meshq.errors import ClosedError, ConnectionBrokenError, SecurityError
from meshq.logs import logger
from meshq.settings import Acceptor
from meshq.wire import BY_NAME, Close, Frame, FrameType, encode

_log = logger("broker")
#: Seconds to wait when the system has no room for a connection (too many open files).
_REFUSED_PAUSE_S = 0.1


class _Entrance(NamedTuple):
    """An acceptor, and its side of TLS if it has one."""

    acceptor: Acceptor
    side: abc.TlsSide | None


class Once:
    """Something that is to be done, once, by whoever comes first."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        """Do it, unless it is done."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Listeners:
    """All acceptors of a node, and the connections that came through them."""

    def __init__(
        self,
        core: Core,
        sessions: Sessions,
        network: abc.Network,
        counts: ConnectionCounts,
        *,
        tls: abc.Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._network = network
        self._counts = counts
        self._tls = tls
        self._credentials = credentials
        self._guard = Guard()
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
                self._core.on_warning("accept_refused", f"no connection can be accepted: {error}")
                await trio.sleep(_REFUSED_PAUSE_S)
                continue
            nursery.start_soon(self._serve, stream, entrance)

    async def _serve(self, stream: abc.Stream, entrance: _Entrance) -> None:
        address = address_of(stream.peer)
        security = self._credentials is not None and self._credentials.serves("client")
        trusted = not security and (entrance.acceptor.endpoint.loopback or entrance.acceptor.insecure)
        room = self._guard.arrived(address)
        wait = self._guard.delay(address, trio.current_time())
        entered = Once(partial(self._guard.settled, address))
        try:
            if not room and not trusted:
                self._turn_away(stream)
                return
            try:
                if wait:
                    await trio.sleep(wait)
                if entrance.side is not None:
                    with trio.fail_after(HANDSHAKE_S):
                        stream = await entrance.side.wrap(stream)
            except (ConnectionBrokenError, SecurityError, trio.TooSlowError) as error:
                _log.debug("no TLS with %s: %s", stream.peer, error, extra={"event": "tls_failed"})
                return
            connection = self._connection(stream, entrance, trusted)
            connection.on_authenticated = entered
            await self._attend(connection, address)
        finally:
            entered()
            stream.close()

    def _connection(self, stream: abc.Stream, entrance: _Entrance, trusted: bool) -> StreamConnection:
        return StreamConnection(
            self._core,
            self._sessions,
            stream,
            self._counts,
            local=entrance.acceptor.endpoint.loopback,
            trusted=trusted,
            credentials=self._credentials,
        )

    def take(self, stream: abc.Stream) -> None:
        """Serve somebody in the same process, who is asked for nothing."""
        if self._nursery is None or self._closed:
            stream.close()
        else:
            self._nursery.start_soon(self._serve_local, stream)

    async def _serve_local(self, stream: abc.Stream) -> None:
        connection = StreamConnection(
            self._core,
            self._sessions,
            stream,
            self._counts,
            local=True,
            trusted=True,
            credentials=self._credentials,
        )
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
            if connection.server.denied:
                self._guard.failed(address, trio.current_time())

    def _turn_away(self, stream: abc.Stream) -> None:
        """Say that there are too many already; under TLS it is not worth the handshake in which it could be said."""
        self._counts.turned_away += 1
        entry = BY_NAME["crowded"]
        close = Close(code=entry.number, text=entry.sentence)
        try:
            stream.send_nowait(encode(Frame(FrameType.CLOSE, header=close.encode())))
        except ConnectionBrokenError:
            return

    def close(self) -> None:
        """Accept no more."""
        self._closed = True
        for listener in self._open:
            listener.close()
        self._open.clear()
