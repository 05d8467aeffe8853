"""A real node's side of a connection, as far as it needs no task: what hears the conversations of ``_frames_strategy``.

Everything that a node decides when bytes arrive is decided here by its own code: link, connection, session, router,
queues.  Only the stream is ours, and there is no disk.
"""

from __future__ import annotations

from meshq import abc, limits
from meshq.broker import ConnectionCounts, Core, CoreSettings, Credentials, SessionBounds, SessionRegistry
from meshq.broker.connection._server_connection_machine import ServerConnection
from meshq.errors import RemoteProtocolError
from meshq.wire import (
    BY_NUMBER,
    Answer,
    Close,
    ConsumerLost,
    Frame,
    FrameType,
    ReceiveBuffer,
    Refuse,
    StreamLink,
    encode,
    header_of,
)
from tests.broker.hosts import FakeHost, FakePageRequests
from tests.broker.kit import NoWatcher, nothing
from tests.wire._frames_strategy import Step


class WrittenStream(abc.Stream):
    """A stream whose other end is a list."""

    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def send_nowait(self, data: abc.Buffer) -> int:
        self.written.append(bytes(data))
        return 0

    async def flush(self) -> None:
        raise AssertionError("nothing waits here")

    async def receive(self, size_max: int) -> bytes:
        raise AssertionError("what arrives is fed")

    def close(self) -> None:
        self.closed = True


class MemoryNode:
    """A node without a disk, a clock or a socket."""

    def __init__(self, *, memory_limit_bytes: int = limits.GIB) -> None:
        self.now = 0.0
        settings = CoreSettings(
            name="node",
            node_id=bytes(16),
            memory_limit_bytes=memory_limit_bytes,
            address_settings={},
            token=bytes,
            failpoint=abc.no_failpoint,
            now_ms=lambda: 1_000_000,
            elapsed_ms=lambda: 0,
            host=FakeHost(),
            page_requests=FakePageRequests(),
        )
        self.core = Core(settings, None)
        self.sessions = SessionRegistry(self.core, lambda: self.now, 60.0, detached=nothing, admission=SessionBounds())
        self.counts = ConnectionCounts()

    def connect(self, *, trusted: bool = True, credentials: Credentials | None = None) -> NodePeer:
        """A new connection to it."""
        return NodePeer(self, trusted, credentials)

    def wait(self, seconds: float) -> None:
        """Time goes by, and sessions whose clients did not come back end."""
        self.now += seconds
        self.sessions.expire()


class NodePeer:
    """One connection to the node, from the client's end."""

    def __init__(self, node: MemoryNode, trusted: bool, credentials: Credentials | None) -> None:
        self.stream = WrittenStream()
        self._link = StreamLink(self.stream, local=True)
        self.server = ServerConnection(
            node.core, node.sessions, self._link, NoWatcher(), node.counts, trusted=trusted, credentials=credentials
        )
        self._buffer = ReceiveBuffer(limits.BODY_BYTES_MAX)
        #: What the node has said.
        self.heard: list[Frame] = []

    def feed(self, data: bytes) -> None:
        """Bytes arrive at the node; what it says to that is heard."""
        try:
            if not self.server.closed:
                self._link.feed(data)
        except RemoteProtocolError as error:
            self.server.violated(error)
        self._hear()

    def end(self) -> None:
        """The stream ends in an orderly way."""
        try:
            if not self.server.closed:
                self._link.end()
        except RemoteProtocolError as error:
            self.server.cut_off(error)
        self.server.lost()
        self._hear()

    def say(self, *steps: Step) -> None:
        """Send these frames, one by one."""
        for step in steps:
            self.feed(encode(step.frame))

    def _hear(self) -> None:
        for data in self.stream.written:
            self.heard += self._buffer.feed(data)
        self.stream.written.clear()

    def heard_of(self, frame_type: FrameType) -> list[Frame]:
        """The frames of one type that the node has said."""
        return [frame for frame in self.heard if frame.type is frame_type]

    @property
    def refusal(self) -> str | None:
        """The name of the entry with which the node closed the connection, if it did."""
        closes = [header_of(frame, Close) for frame in self.heard_of(FrameType.CLOSE)]
        return BY_NUMBER[closes[0].code].name if closes else None

    @property
    def refusals(self) -> list[str]:
        """The names of all entries with which the node has refused something."""
        schemas = (Close, Answer, Refuse, ConsumerLost)
        codes = [header_of(frame, schema).code for schema in schemas for frame in self.heard_of(schema.frame_type)]
        return [BY_NUMBER[code].name for code in codes if code]
