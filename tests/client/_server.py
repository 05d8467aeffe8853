"""A scripted node for tests of the client: speaks frames, keeps no promise unless told to, remembers what it heard.

Everything happens in the client's own turn: bytes that the client sends are handled at once, answers wait in its
stream.  A test cuts connections, holds confirms, refuses, takes the node down, or swaps it for another one.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from meshq import abc
from meshq.env import real_env
from meshq.errors import ConnectionBrokenError, NotActiveError
from meshq.wire import (
    BY_NAME,
    Answer,
    Attach,
    Attached,
    Authenticated,
    Call,
    Close,
    Consume,
    ConsumerLost,
    Deliver,
    DirectLink,
    Envelope,
    Frame,
    FrameType,
    Header,
    IncomingStream,
    Leave,
    OutgoingStream,
    Produce,
    ReceiveBuffer,
    Refuse,
    RunBytes,
    RunView,
    Welcome,
    check_run,
    encode,
    encode_run,
    header_of,
)
from tests.client._stream import MemoryStream

T = FrameType


@attrs.define(eq=False)
class FakeSession:
    """What a fake node keeps of a session."""

    number: int
    key: bytes
    incoming: IncomingStream = attrs.field(factory=IncomingStream)
    outgoing: OutgoingStream = attrs.field(factory=OutgoingStream)
    connection: FakeConnection | None = None
    #: Channel -> producer id and address.
    producers: dict[int, tuple[bytes, str]] = attrs.field(factory=dict)
    #: Channel -> queue, and the next tag on it.
    consumers: dict[int, str] = attrs.field(factory=dict)
    tags: dict[int, int] = attrs.field(factory=dict)

    def say(self, frame: Frame) -> None:
        """Number a frame and send it if there is a connection."""
        self.outgoing.number(frame, keep=True)
        if self.connection is not None:
            frame.received = self.incoming.last
            self.connection.send(frame)


class FakeConnection:
    """The node's end of one connection."""

    def __init__(self, node: FakeNode, send: Callable[[list[Frame]], None], close: Callable[[], None]) -> None:
        self.node = node
        self.session: FakeSession | None = None
        self._send = send
        self._close = close
        self.closed = False
        self._out: list[Frame] = []
        node.connections.append(self)

    def send(self, frame: Frame) -> None:
        self._out.append(frame)

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.closed:
            self._send(out)

    def frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            if not self.closed:
                self.node.handle(self, frame)
        self.flush()

    def say(self, header: Header) -> None:
        self.send(Frame(header.frame_type, header=header.encode()))

    def close(self, name: str | None = None, text: str = "") -> None:
        """End the connection; ``name`` is the refusal to say."""
        if name is not None:
            self.say(Close(code=BY_NAME[name].number if name else 0, text=text))
        self.flush()
        self.lost()
        self._close()

    def lost(self) -> None:
        self.closed = True
        if self.session is not None and self.session.connection is self:
            self.session.connection = None

    def backlogged(self) -> None:
        """Nothing waits unsent on a link within the process."""


@attrs.define(eq=False)
class FakeNode:
    """One node.  What it does is its public state; a test sets it."""

    name: str = "n"
    node_id: bytes = b"n" * 16
    up: bool = True
    #: The refusal with which each handshake ends, if any.
    unwelcome: str | None = None
    #: Takes every frame and says nothing.
    mute: bool = False
    version: int = 1
    mechanisms: tuple[str, ...] = ("none",)
    ttl_ms: int = 60_000
    credit: int = 1 << 40
    #: Confirms, and answers, are given at once; else they wait for ``release``.
    confirms: bool = True
    answers: bool = True
    #: SEND frames are swallowed: received, but nothing becomes of them.
    stores: bool = True
    #: Called for each SEND; returns the refusal's name to refuse it.
    refuse: Callable[[Frame], str | None] = lambda frame: None
    #: Called for each call and opening; returns the refusal's name to refuse it.
    refuse_call: Callable[[str], str | None] = lambda operation: None
    answer_values: dict[str, dict[str, object]] = attrs.field(factory=dict)
    connections: list[FakeConnection] = attrs.field(factory=list)
    streams: list[MemoryStream] = attrs.field(factory=list)
    sessions: dict[int, FakeSession] = attrs.field(factory=dict)
    marks: dict[bytes, int] = attrs.field(factory=dict)
    #: (address, producer, number, body) in the order stored.
    stored: list[tuple[str, bytes, int, bytes]] = attrs.field(factory=list)
    ids: list[bytes] = attrs.field(factory=list)
    heard: list[Frame] = attrs.field(factory=list)
    #: (kind, first tag, last tag) of everything that was settled.
    settled: list[tuple[str, int, int]] = attrs.field(factory=list)
    left: list[tuple[int, int]] = attrs.field(factory=list)
    _held: list[Callable[[], None]] = attrs.field(factory=list)
    _last_session: int = 0

    # -- seen by tests

    @property
    def bodies(self) -> list[bytes]:
        return [body for *_, body in self.stored]

    def heard_types(self) -> list[str]:
        return [frame.type.name for frame in self.heard]

    @property
    def session(self) -> FakeSession:
        """The newest session."""
        return self.sessions[max(self.sessions)]

    def cut(self, *, forget: bool = False) -> None:
        """All connections break.  ``forget``: the sessions end, too, as at a restart."""
        for connection in self.connections:
            connection.lost()
        for stream in self.streams:
            stream.cut()
        self.connections.clear()
        self.streams.clear()
        if forget:
            self.sessions.clear()

    def restart(self) -> None:
        """Connections, sessions and what was held back are gone; what was stored is not."""
        self._held.clear()
        self.cut(forget=True)

    def release(self) -> None:
        """Give the confirms and answers that were held back."""
        held, self._held = self._held, []
        for say in held:
            say()
        for connection in list(self.connections):
            connection.flush()

    def deliver(self, queue: str, bodies: list[bytes], **header: object) -> None:
        """Deliver a run to the newest consumer of a queue."""
        session, channel = next(
            (session, channel)
            for session in reversed(self.sessions.values())
            for channel in reversed(session.consumers)
            if session.consumers[channel] == queue
        )
        envelopes: list[Envelope] | None = header.pop("envelopes", None)  # type: ignore[assignment]
        run = encode_run(bodies, envelopes)
        about = {"address": queue, "producer": b"p" * 16, "number": 1, "sequence": 1, **header}
        first = session.tags.get(channel, 1)
        session.tags[channel] = first + len(bodies)
        session.say(
            Frame(
                T.DELIVER,
                channel=channel,
                first=first,
                stamp=1_500,
                header=Deliver(**about).encode(),  # type: ignore[arg-type]
                count=run.rows,
                table=run.table,
                body=run.body,
            )
        )
        self.flush()

    def lose_consumer(self, queue: str, code: int = BY_NAME["queue_deleted"].number) -> None:
        session, channel = next(
            (session, channel)
            for session in self.sessions.values()
            for channel in session.consumers
            if session.consumers[channel] == queue
        )
        del session.consumers[channel]
        header = ConsumerLost(code=code, text=f"the queue {queue!r} was deleted")
        session.say(Frame(T.CONSUMER_LOST, channel=channel, header=header.encode()))
        self.flush()

    def give_credit(self, more: int) -> None:
        self.credit += more
        for session in self.sessions.values():
            session.say(Frame(T.CREDIT, first=self.credit))
        self.flush()

    def flush(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    # -- links

    def connect(self, peer: str) -> MemoryStream:
        """A byte stream to this node."""
        stream = MemoryStream(peer)
        buffer = ReceiveBuffer(1 << 30)
        connection = FakeConnection(self, lambda out: stream.arrive(b"".join(map(encode, out))), stream.end)
        stream.on_bytes = lambda data: connection.frames(buffer.feed(data))
        self.streams.append(stream)
        return stream

    def connect_local(self, label: str) -> DirectLink:
        """A link within the process to this node."""
        if not self.up:
            raise NotActiveError(f"{self.name} is not active")
        here, there = DirectLink.pair(label or "client", self.name)

        def send(out: list[Frame]) -> None:
            for frame in out:
                there.send(frame)
            there.flush()

        connection = FakeConnection(self, send, there.close)
        there.start(connection)
        return here

    # -- frames

    def handle(self, connection: FakeConnection, frame: Frame) -> None:
        self.heard.append(frame)
        if self.mute:
            return
        session = connection.session
        if session is not None and frame.type is not T.CLOSE:
            session.incoming.accept(frame)
            session.outgoing.arrived(frame.received)
        getattr(self, "_" + frame.type.name.lower())(connection, frame)

    def _hello(self, connection: FakeConnection, frame: Frame) -> None:
        if self.unwelcome is not None:
            connection.close(self.unwelcome, "not now")
            return
        about = {"node_id": self.node_id, "node_name": self.name, "mechanisms": self.mechanisms}
        connection.say(Welcome(version=self.version, **about))  # type: ignore[arg-type]

    def _authenticate(self, connection: FakeConnection, frame: Frame) -> None:
        connection.say(Authenticated())

    def _attach(self, connection: FakeConnection, frame: Frame) -> None:
        wanted = header_of(frame, Attach)
        session = self.sessions.get(wanted.session)
        resumed = session is not None and session.key == wanted.key
        if session is None or not resumed:
            self._last_session += 1
            session = FakeSession(self._last_session, bytes([self._last_session]) * 16)
            self.sessions[session.number] = session
        connection.session = session
        session.connection = connection
        received = session.incoming.last if resumed else 0
        connection.say(
            Attached(session=session.number, key=session.key, resumed=resumed, received=received, ttl_ms=self.ttl_ms)
        )
        if resumed:
            for again in session.outgoing.resume(wanted.received):
                again.received = session.incoming.last
                connection.send(again)
        elif self.credit:
            # One that grants nothing more says that the disk has no room.
            session.say(Frame(T.CREDIT, first=self.credit))

    def _close(self, connection: FakeConnection, frame: Frame) -> None:
        session = connection.session
        if session is not None:
            self.sessions.pop(session.number, None)
        connection.close()

    def _ping(self, connection: FakeConnection, frame: Frame) -> None:
        connection.send(Frame(T.PONG))

    def _pong(self, connection: FakeConnection, frame: Frame) -> None:
        pass

    _received = _pong
    # Bodies of large messages are asked for in vain.
    _read = _pong

    def _produce(self, connection: FakeConnection, frame: Frame) -> None:
        header = header_of(frame, Produce)
        session = connection.session
        assert session is not None
        session.producers[frame.channel] = (header.producer, header.address)
        mark = self.marks.get(header.producer)
        self._answer(
            session, frame.first, {"number": mark or 0, "known": mark is not None}, f"produce {header.address}"
        )

    def _send(self, connection: FakeConnection, frame: Frame) -> None:
        session = connection.session
        assert session is not None
        producer, address = session.producers[frame.channel]
        name = self.refuse(frame)
        if name is not None:
            header = Refuse(messages=frame.count, code=BY_NAME[name].number, text="no")
            session.say(Frame(T.REFUSE, channel=frame.channel, first=frame.first, header=header.encode()))
            return
        if not self.stores:
            return
        run = RunBytes(frame.count, bytes(frame.table), 0, frame.body)
        check_run(run)
        view = RunView(run)
        last = frame.first + frame.count - 1
        mark = self.marks.get(producer, 0)
        if frame.first > mark:
            self.marks[producer] = last
            for index in range(frame.count):
                self.stored.append((address, producer, frame.first + index, view.body(index)))
                self.ids.append(view.duplicate_id(index))
        channel = frame.channel
        self._now_or_later(self.confirms, lambda: session.say(Frame(T.CONFIRM, channel=channel, first=last)))

    def _consume(self, connection: FakeConnection, frame: Frame) -> None:
        header = header_of(frame, Consume)
        session = connection.session
        assert session is not None
        session.consumers[frame.channel] = header.queue
        self._answer(session, frame.first, {"queue": header.queue, "address": header.queue}, f"consume {header.queue}")

    def _settle(self, connection: FakeConnection, frame: Frame) -> None:
        kind = {0: "ack", 8: "nack", 16: "reject", 128: "ack in a transaction"}[frame.flags]
        table = memoryview(bytes(frame.table)).cast("Q").tolist()
        self.settled += [(kind, first, last) for first, last in zip(table[0::2], table[1::2], strict=True)]
        assert connection.session is not None
        if frame.first:
            self._answer(connection.session, frame.first, {}, "settle")

    def _transact(self, connection: FakeConnection, frame: Frame) -> None:
        assert connection.session is not None
        self._answer(connection.session, frame.first, {}, "transact")

    def _leave(self, connection: FakeConnection, frame: Frame) -> None:
        session = connection.session
        assert session is not None
        session.consumers.pop(frame.channel, None)
        session.producers.pop(frame.channel, None)
        self.left.append((frame.channel, header_of(frame, Leave).handed))
        self._answer(session, frame.first, {}, "leave")

    def _call(self, connection: FakeConnection, frame: Frame) -> None:
        call = header_of(frame, Call)
        assert connection.session is not None
        self._answer(connection.session, frame.first, self.answer_values.get(call.operation, {}), call.operation)

    def _answer(self, session: FakeSession, number: int, values: dict[str, object], operation: str) -> None:
        name = self.refuse_call(operation)
        flat = tuple(item for pair in values.items() for item in pair)
        header = Answer(values=flat)
        if name is not None:
            header = Answer(code=BY_NAME[name].number, text=f"{operation} is refused")
        self._now_or_later(self.answers, lambda: session.say(Frame(T.ANSWER, first=number, header=header.encode())))

    def _now_or_later(self, now: bool, say: Callable[[], None]) -> None:
        if now:
            say()
        else:
            self._held.append(say)


class FakeNetwork(abc.Network):
    """A network of fake nodes."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, int], FakeNode] = {}
        #: When which endpoint was dialed.
        self.dialed: list[tuple[float, str, int]] = []
        #: Endpoints that take a connection and never answer.
        self.black_holes: dict[tuple[str, int], None] = {}

    async def connect(self, host: str, port: int) -> abc.Stream:
        self.dialed.append((trio.current_time(), host, port))
        await trio.lowlevel.checkpoint()
        if (host, port) in self.black_holes:
            await trio.sleep_forever()
        node = self.nodes.get((host, port))
        if node is None or not node.up:
            text = f"{host}:{port} can't be reached"
            raise ConnectionBrokenError(text, outcome="not_done") from ConnectionRefusedError("nobody is there")
        return node.connect(f"{host}:{port}")

    async def listen(self, host: str, port: int) -> abc.Listener:
        raise OSError("fake nodes do not listen")


def fake_env(*nodes: FakeNode) -> tuple[abc.Env, FakeNetwork]:
    """An environment in which nodes are at 127.0.0.1, ports 1, 2, ..., and in process by their names."""
    network = FakeNetwork()
    for port, node in enumerate(nodes, 1):
        network.nodes["127.0.0.1", port] = node
    env = attrs.evolve(real_env(), network=network, local={node.name: node for node in nodes})
    return env, network
