"""The tasks of one byte stream: a reader, a writer for bytes that could not be sent at once, and an idle watch."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from meshq import abc, limits
from meshq.broker.connection._link_server import LinkServer
from meshq.broker.connection._server_connection_machine import ServerConnection
from meshq.errors import ConnectionBrokenError, RemoteProtocolError, SecurityError
from meshq.wire import BY_NAME, FrameType, StreamLink, violation

#: Seconds that a client may take for each phase of its handshake: TLS and greeting, authentication, session.
HANDSHAKE_S = 5.0
#: Seconds after which it is looked whether a client is there still that is not listened to.
LOOK_S = 1.0


class StreamConnection:
    """Serves one byte stream until it ends."""

    def __init__(
        self,
        links: LinkServer,
        stream: abc.Stream,
        *,
        local: bool,
        trusted: bool,
        entered: Callable[[], None] | None = None,
        redirect_to: str | None = None,
    ) -> None:
        #: The byte stream that is served.
        self.stream = stream
        self._link = StreamLink(stream, local=local)
        self.server: ServerConnection = links.serve(self._link, self, trusted=trusted, redirect_to=redirect_to)
        # Called when whoever is there has a session, or waits for a balancer; twice is silent.
        self._entered = entered
        # Bytes that may still be read before it is known who is there; 0: it is.
        self._allowance = limits.UNAUTHENTICATED_READ_BYTES_MAX
        self._phase = self.server.handshake.life.state
        self._backlog = trio.Event()
        self._taken_in = trio.Event()
        # When the last bytes came: a part of a large frame is a sign of life, too.
        self._heard_at = 0.0
        # Whether the other side has asked for a sign of life since it was looked at last.
        self._pinged = False
        # What waited for the client has gone out; and how much did when it was looked at last.
        self._drained = trio.Event()
        self._unread = 0
        # Whether bytes are still written; and nothing else flushes the stream.
        self._writes = False
        self._attached = trio.Event()
        # Ends the handshake unless it goes on in time.
        self._patience = trio.CancelScope()
        # The scope of the connection's tasks, while these run.
        self._tasks: trio.CancelScope | None = None

    def attached(self, connection: ServerConnection) -> None:
        """Give the handshake no more deadlines: it is done."""
        self._attached.set()
        if self._entered is not None:
            self._entered()

    def routing(self, connection: ServerConnection) -> None:
        """Give the handshake no more deadlines, and no place among strangers: a balancer decides, in its own time."""
        self._patience.deadline = math.inf
        if self._entered is not None:
            self._entered()

    def taken_in(self, connection: ServerConnection) -> None:
        """Let the reader go on."""
        self._taken_in.set()

    def pinged(self, connection: ServerConnection) -> None:
        """Note that the client has asked, so that this side need not: the answer is a sign of life for both."""
        self._pinged = True

    def backlogged(self, connection: ServerConnection) -> None:
        """Have the unsent bytes written."""
        self._backlog.set()

    def closed(self, connection: ServerConnection) -> None:
        """End the tasks of the connection."""
        if self._tasks is not None:
            self._tasks.cancel()

    async def serve(self) -> None:
        """Serve until either side ends the connection.

        Checkpoint: always.
        Cancellation: the stream is closed, and the session waits for its client.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._tasks, self._writes = nursery.cancel_scope, True
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._writes = False
            self._drained.set()
            self.server.lost()

    async def flushed(self) -> None:
        """Wait until the writer has sent all bytes in line, or has ended.

        Checkpoint: always.
        Cancellation: nothing changes.
        """
        drained = self._drained
        self._backlog.set()
        await trio.lowlevel.checkpoint()
        if self._writes:
            await drained.wait()

    async def _read(self) -> None:
        stream, link = self.stream, self._link
        while True:
            try:
                data = await stream.receive(self._allowance or limits.RECEIVE_BYTES)
            except (ConnectionBrokenError, SecurityError):
                return
            self._heard_at = trio.current_time()
            try:
                if data:
                    link.feed(data)
                    if self._allowance:
                        self._shaken(len(data))
                    if link.waiting > limits.UNREAD_BYTES_MAX:
                        await self._wait_until_read()
                    await self._wait_until_taken_in()
                    continue
            except RemoteProtocolError as error:
                self.server.violated(error)
                return
            try:
                link.end()
            except RemoteProtocolError as error:
                self.server.cut_off(error)
            return

    def _shaken(self, size: int) -> None:
        """So many bytes of the handshake have been heard: a phase that is done gives time for the next one.

        Raises:
            RemoteProtocolError: too many for somebody of whom nothing is known.
        """
        handshake = self.server.handshake
        phase, self._phase = self._phase, handshake.life.state
        if self._phase != phase and not self.server.routing:
            self._patience.deadline = trio.current_time() + HANDSHAKE_S
        self._allowance = max(self._allowance - size, 0)
        if handshake.authenticated:
            self._allowance = 0
        elif not self._allowance and not self.server.closed:
            allowed = limits.UNAUTHENTICATED_READ_BYTES_MAX
            raise violation("too_large", f"{allowed} bytes, and it is not known who says them")

    async def _wait_until_taken_in(self) -> None:
        """Read nothing more while too much waits for room on the disk or for filters.

        Whoever has ended the connection is read to its end, which the system has bounded: what waits is let go then.
        """
        while self.server.deferred.crowded and not self.stream.gone():
            self._taken_in = trio.Event()
            with trio.move_on_after(LOOK_S):
                await self._taken_in.wait()

    async def _wait_until_read(self) -> None:
        """Read nothing more from a client that does not read its answers."""
        self._unread = self._link.waiting
        await self._drained.wait()
        self._unread = 0

    async def _write(self) -> None:
        while True:
            await self._backlog.wait()
            self._backlog = trio.Event()
            try:
                await self.stream.flush()
            except (ConnectionBrokenError, SecurityError):
                # The reader gets the same, and ends the connection.
                self._writes = False
                return
            finally:
                self._link.waiting = 0
                self.server.drained()
                self._drained.set()
                self._drained = trio.Event()

    def _reads(self) -> bool:
        """Whether a client of which nothing is taken has read something since this was asked last: a sign of life."""
        if not self._unread:
            return False
        try:
            before, self._unread = self._unread, self.stream.send_nowait(b"")
        except ConnectionBrokenError:
            return False
        return self._unread < before

    async def _watch(self) -> None:
        server = self.server
        self._patience.deadline = trio.current_time() + HANDSHAKE_S
        with self._patience:
            await self._attached.wait()
        if not server.attached:
            entry = BY_NAME["silent"]
            server.say_close(entry.number, "the handshake took too long")
            server.lost()
            return
        third = server.ttl / 3
        looked_at = trio.current_time()
        while True:
            due = min(looked_at + third, self._heard_at + server.ttl)
            await trio.sleep_until(due)
            if not server.attached:
                # The good-bye was said, and is still on its way.
                return
            now = trio.current_time()
            # While this process stood still nobody could be heard: what was said then waits to be read.
            self._heard_at += now - due
            if self._reads() or server.deferred.crowded:
                # Or it is not listened to.
                self._heard_at = now
            if self._heard_at + server.ttl <= now:
                server.say_close(BY_NAME["silent"].number, f"nothing was heard for {now - self._heard_at:.1f} s")
                server.lost()
                return
            if looked_at + third <= now:
                if not self._pinged:
                    server.send(FrameType.PING)
                    self._link.flush()
                looked_at, self._pinged = now, False
