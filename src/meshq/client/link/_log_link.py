"""A link by which a node follows the log of another one; it has no session, and ends with the first fault."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from meshq import limits
from meshq.client.link._backlog_writer import BacklogWriter
from meshq.client.link._connector import ConnectTarget
from meshq.client.link._handshake import Handshake, HandshakeOwner, HandshakeUser
from meshq.client.link._link_end import closed_by, nobody_there
from meshq.client.link._login import Login
from meshq.client.session._session import LinkOwner
from meshq.concurrency import ChangeSignal, first_error
from meshq.errors import ConnectionBrokenError, MeshqError, RemoteProtocolError, caused
from meshq.wire import (
    Attached,
    Close,
    Frame,
    FrameType,
    IncomingStream,
    Link,
    Log,
    Logged,
    Probed,
    Replicate,
    StreamLink,
    Welcome,
    header_of,
    violation,
)

#: Seconds to connect in, at most.
CONNECT_S_MAX = 30.0


@attrs.frozen(kw_only=True)
class LogPiece:
    """A piece of a log.  ``first``: a position."""

    header: Log
    first: int
    body: bytes


class LogLink(HandshakeUser, HandshakeOwner):
    """A link to one node, with a login and a request for its log."""

    def __init__(self, target: ConnectTarget, login: Login, wanted: Replicate) -> None:
        self._target = target
        self._login = login
        self._wanted = wanted
        self._incoming = IncomingStream()
        self._sent = 0
        self._link: Link | None = None
        self._pieces: deque[LogPiece] = deque()
        self._parts: list[bytes] = []
        self._changed = ChangeSignal()
        self._end: MeshqError | None = None
        #: Whether no connection could be made, because nobody listens there, or nothing leads there.
        self.nobody: bool = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Surround the life of the link.

        Checkpoint: always.
        Cancellation: the link is closed.
        Raises:
            MeshqError: the node can't be reached.
        """
        self._link = link = await self._open()
        writer = BacklogWriter()
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                if isinstance(link, StreamLink):
                    writer.begin(link.stream, nursery)
                Handshake(link, self, self._wanted.node_name, self._login, self, writer=writer).start()
                try:
                    yield
                except (MeshqError, OSError) as error:
                    # It leaves the block as it was raised, in no group.
                    failure = error
                finally:
                    writer.end()
                    link.close()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise (only := first_error(group)) from only.__cause__
        if failure is not None:
            raise failure

    async def _open(self) -> Link:
        """Connect; also where the URL says to wait for ever, not for ever."""
        try:
            with trio.move_on_after(CONNECT_S_MAX):
                return await self._target.open()
            late = ConnectionBrokenError(f"{self._target} can't be reached: no connection in time", outcome="not_done")
            raise caused(late, TimeoutError(f"waited {CONNECT_S_MAX:g} s for a connection"))
        except ConnectionBrokenError as error:
            self.nobody = nobody_there(error)
            raise

    async def receive(self) -> LogPiece:
        """Return the next piece.

        Checkpoint: always.
        Cancellation: nothing is lost.
        Raises:
            MeshqError: the link has ended, and no piece is left; says why.
        """
        await trio.lowlevel.checkpoint()
        while not self._pieces:
            if self._end is not None:
                raise self._end
            await self._more()
        return self._pieces.popleft()

    async def attend(self) -> None:
        """Answer signs of life, and keep the pieces that come, until the link has ended.

        Checkpoint: always.
        Cancellation: nothing is lost.
        """
        await trio.lowlevel.checkpoint()
        while self._end is None:
            await self._more()

    async def _more(self) -> None:
        link = self._link
        assert link is not None
        if not isinstance(link, StreamLink):
            await self._changed.wait()
            return
        patience_s = self._wanted.ttl_ms / 1000
        with trio.move_on_after(patience_s if patience_s < limits.TIME_S_MAX else math.inf) as scope:
            try:
                data = await link.stream.receive(limits.RECEIVE_BYTES)
                if data:
                    link.feed(data)
                    return
            except MeshqError as error:
                self._ended(error)
                return
        if scope.cancelled_caught:
            silent = ConnectionBrokenError(f"{link.peer} was silent for {patience_s:g} s")
            self._ended(caused(silent, TimeoutError("nothing was heard")))
        else:
            self.broke_off()

    def tell(self, answer: Logged, first: int = 0) -> None:
        """Say something to the node; silent once the link has ended."""
        link = self._link
        if self._end is None and link is not None:
            self._sent += 1
            link.send(Frame(FrameType.LOGGED, number=self._sent, first=first, header=answer.encode()))
            link.flush()

    def _ended(self, error: MeshqError) -> None:
        if self._end is None:
            self._end = error
            self._changed.tell()

    # -- what the node says

    def request(self, node_id: bytes) -> Replicate:
        """Make the request."""
        return self._wanted

    def handle(self, frames: list[Frame]) -> None:
        """Take pieces of the log."""
        link = self._link
        assert link is not None
        try:
            for frame in frames:
                self._one(frame, link)
        except RemoteProtocolError as error:
            self._ended(error)
        self._changed.tell()

    def _one(self, frame: Frame, link: Link) -> None:
        if frame.type is FrameType.LOG:
            self._incoming.accept(frame)
            header = header_of(frame, Log)
            self._parts.append(bytes(frame.body))
            if not header.more:
                self._pieces.append(LogPiece(header=header, first=frame.first, body=b"".join(self._parts)))
                self._parts.clear()
        elif frame.type is FrameType.PING:
            link.send(Frame(FrameType.PONG))
            link.flush()
        elif frame.type is FrameType.CLOSE:
            self.peer_closed(header_of(frame, Close))
        elif frame.type is not FrameType.PONG:
            raise violation("illegal_frame", f"{frame.type.name} where a log was asked for")

    def greeted(self, welcome: Welcome) -> None:
        """Do nothing: an older node refuses the request."""

    def wants(self, attached: Attached) -> bool:
        """Return True: ``attach`` refuses the session."""
        return True

    def unwanted(self) -> None:
        """Do nothing: no session is refused."""

    def attach(self, link: Link, attached: Attached, node_id: bytes, owner: LinkOwner) -> None:
        """Refuse a session, because a log was asked for."""
        raise violation("illegal_frame", "ATTACHED where a log was asked for")

    def attached(self, welcome: Welcome, attached: Attached) -> None:
        """Do nothing: no session is asked for."""

    def probed(self, welcome: Welcome | None, probed: Probed) -> None:
        """Refuse the answer to another question."""
        self._ended(violation("illegal_frame", "PROBED where a log was asked for"))

    def peer_closed(self, close: Close) -> None:
        """Note that the node ends the link, and why."""
        self._ended(closed_by(self._link.peer if self._link is not None else "the node", close).error)

    def peer_violated(self, error: MeshqError) -> None:
        """Note that the node is not believed, or breaks the protocol."""
        self._ended(error)

    def broke_off(self) -> None:
        """Note that the node has ended the link without a word."""
        peer = self._link.peer if self._link is not None else "the node"
        self._ended(caused(ConnectionBrokenError(f"{peer} has ended the link"), EOFError("the stream has ended")))
