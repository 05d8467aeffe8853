"""The tasks around one byte stream of a node: a reader, a writer for what could not go at once, a watch on silence."""

from __future__ import annotations

import trio

from meshq import abc, limits
from meshq.broker._connection_machine import ConnectionCounts, ServerConnection
from meshq.broker._core import Core
from meshq.broker._sessions import Sessions
from meshq.errors import ConnectionBrokenError, RemoteProtocolError
from meshq.wire import BY_NAME, FrameType, StreamLink

#: Seconds that a client may take for its handshake.
HANDSHAKE_S = 5.0


class StreamConnection:
    """Serves one byte stream until it ends."""

    def __init__(
        self,
        core: Core,
        sessions: Sessions,
        stream: abc.Stream,
        counts: ConnectionCounts,
        *,
        local: bool,
        trusted: bool,
    ) -> None:
        #: The byte stream that is served.
        self.stream = stream
        self._link = StreamLink(stream, local=local)
        self.server = ServerConnection(core, sessions, self._link, counts, trusted=trusted)
        self._backlog = trio.Event()
        self._link.on_backlog = self._backlogged
        self._attached = trio.Event()
        self.server.on_attached = self._attached.set

    def _backlogged(self) -> None:
        self._backlog.set()

    async def serve(self) -> None:
        """Serve until either side ends the connection.

        Checkpoint: always.
        Cancellation: the stream is closed, and the session waits for its client.
        """
        try:
            async with trio.open_nursery() as nursery:
                self.server.on_closed = nursery.cancel_scope.cancel
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self.server.lost()

    async def _read(self) -> None:
        stream, link = self.stream, self._link
        while True:
            try:
                data = await stream.receive(limits.RECEIVE_BYTES)
            except ConnectionBrokenError:
                return
            try:
                if data:
                    link.feed(data)
                    continue
            except RemoteProtocolError as error:
                self.server.violated(error)
                return
            try:
                link.end()
            except RemoteProtocolError as error:
                self.server.cut_off(error)
            return

    async def _write(self) -> None:
        while True:
            await self._backlog.wait()
            self._backlog = trio.Event()
            try:
                await self.stream.flush()
            except ConnectionBrokenError:
                # The reader gets the same, and ends the connection.
                return

    async def _watch(self) -> None:
        server = self.server
        with trio.move_on_after(HANDSHAKE_S):
            await self._attached.wait()
        if not server.attached:
            entry = BY_NAME["silent"]
            server.say_close(entry.number, "the handshake took too long")
            server.lost()
            return
        heard, quiet = server.heard, 0.0
        while True:
            interval = server.ttl / 3
            await trio.sleep(interval)
            if server.heard != heard:
                heard, quiet = server.heard, 0.0
            else:
                quiet += interval
                if quiet >= server.ttl:
                    server.say_close(BY_NAME["silent"].number, f"nothing was heard for {quiet:.1f} s")
                    server.lost()
                    return
            if not server.attached:
                # The good-bye was said, and is still on its way.
                return
            server.send(FrameType.PING)
            self._link.flush()
