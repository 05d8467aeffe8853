"""A core on a fake log, and a client that speaks in raw frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from meshq.broker import (
    ConnectionCounts,
    Core,
    CoreSettings,
    Credentials,
    EventBus,
    ServerConnection,
    SessionBounds,
    SessionRegistry,
)
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.records import record_prefix
from meshq.settings import AddressSettings, Security
from meshq.store import JournalRecord
from meshq.wire import (
    FLAG_DURABLE,
    SCHEMAS,
    Answer,
    Attach,
    Attached,
    Authenticate,
    Call,
    Close,
    Consume,
    Deliver,
    DirectLink,
    Envelope,
    Frame,
    FrameType,
    Header,
    Hello,
    IncomingStream,
    Leave,
    Link,
    OutgoingStream,
    Produce,
    RunBytes,
    RunView,
    encode_ranges,
    encode_run,
    header_of,
)
from tests.broker.hosts import FakeHost, FakePageRequests
from tests.broker.logs import FakeLog

PRODUCER = b"producer-16bytes"
GIB = 1 << 30


def excerpted(record: JournalRecord) -> JournalRecord:
    """What a start is given of a record whose segment has an index."""
    kept, enough = record_prefix(record.kind, record.payload)
    if not (enough or record.deleted):
        return record
    return attrs.evolve(record, payload=record.payload[:kept], missing=len(record.payload) - kept)


def make_core(
    log: FakeLog | None = None,
    *,
    records: Sequence[JournalRecord] = (),
    memory: int = GIB,
    settings: dict[str, AddressSettings] | None = None,
    now_ms: Callable[[], int] = lambda: 1_000_000,
    elapsed_ms: Callable[[], float] | None = None,
    security: Security | None = None,
    excerpts: bool = False,
    advisory_support: bool = True,
) -> Core:
    """A core on a log, filled from ``records``; ``excerpts``: of these it gets what a start needs only."""
    tokens = iter(range(1, 1 << 30))
    core = Core(
        CoreSettings(
            name="node",
            node_id=b"n" * 16,
            memory_limit_bytes=memory,
            address_settings=settings or {},
            security=security,
            event_bus=EventBus(advisory_support=advisory_support),
            token=lambda size: next(tokens).to_bytes(size, "big"),
            failpoint=lambda name: False,
            now_ms=now_ms,
            host=FakeHost(),
            page_requests=FakePageRequests(),
            # If nobody sets the one clock, the other one goes as it does.
            elapsed_ms=elapsed_ms or now_ms,
        ),
        log,
    )
    if records:
        whole = {record.position: record.payload for record in records}
        recovery = core.recovery(lambda positions: {position: whole[position] for position in positions})
        recovery.take(map(excerpted, records) if excerpts else records)
    if log is not None:
        log.on_durable = core.durable_moved
    return core


def with_ids(*ids: str) -> list[Envelope]:
    """Envelopes with these duplicate ids; an empty one has none."""
    return [Envelope(1 | 4 << 8 if text else 4 << 8, text.encode(), b"", b"") for text in ids]


@attrs.define
class Got:
    """A message as a client got it."""

    tag: int
    sequence: int
    number: int
    body: bytes
    delivery_count: int


def nothing() -> None:
    """Do nothing: the test looks at deadlines itself."""


class NoWatcher:
    """The owner of a connection that a test drives by hand."""

    def attached(self, connection: ServerConnection) -> None: ...

    def taken_in(self, connection: ServerConnection) -> None: ...

    def pinged(self, connection: ServerConnection) -> None: ...

    def backlogged(self, connection: ServerConnection) -> None: ...

    def closed(self, connection: ServerConnection) -> None: ...


class Clock:
    """The time that sessions go by."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@attrs.define(eq=False)
class House:
    """A core with sessions, and a door for clients."""

    core: Core
    clock: Callable[[], float] = attrs.field(factory=Clock)
    counts: ConnectionCounts = attrs.field(factory=ConnectionCounts)
    #: Whether the log syncs after each frame of a client; if not, the test says when.
    auto: bool = True
    sessions: SessionRegistry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sessions = SessionRegistry(self.core, self.clock, 3_600.0, detached=nothing, admission=SessionBounds())

    @property
    def log(self) -> FakeLog:
        log = self.core.release_queue.log
        assert isinstance(log, FakeLog)
        return log

    @property
    def host(self) -> FakeHost:
        host = self.core.settings.host
        assert isinstance(host, FakeHost)
        return host

    def after_frame(self) -> None:
        if self.auto and self.core.durable and not self.log.failed and self.log.durable < self.log.last:
            self.log.sync()

    def rest(self) -> None:
        """Sync until nothing waits for a sync any more."""
        while self.log.durable < self.log.last:
            self.log.sync()

    def queue(self, name: str = "q") -> Queue:
        return self.core.router.queues[name]

    def link(
        self, *, lossless: bool = False, trusted: bool = True, credentials: Credentials | None = None
    ) -> tuple[Link, ServerConnection]:
        """The client's end of a new link, and the connection that serves it.  ``lossless=False``: as if over bytes."""
        here, there = DirectLink.pair("client", "node")
        here.lossless = there.lossless = lossless
        server = ServerConnection(
            self.core, self.sessions, there, NoWatcher(), self.counts, trusted=trusted, credentials=credentials
        )
        return here, server

    def client(self, *, attach: bool = True, lossless: bool = False, **options: Any) -> RawClient:
        """A client, with a session unless ``attach`` is False."""
        client = RawClient(self, lossless=lossless)
        if attach:
            client.shake(**options)
        return client

    def check(self) -> None:
        for queue in self.core.router.queues.values():
            queue.check()


def make_house(log: FakeLog | None = None, **options: Any) -> House:
    """A house on a new core."""
    return House(make_core(log, **options))


@attrs.define
class Receiver:
    """The receiver of a client's end of a link: what a test wants done with the frames, and when the link is lost."""

    frames: Callable[[list[Frame]], None]
    lost: Callable[[], None]

    def backlogged(self) -> None:
        """Nothing waits unsent on a link within the process."""


class RawClient:
    """A client that does what the test says and keeps what comes."""

    def __init__(self, house: House, *, lossless: bool = False) -> None:
        self.house = house
        self.lossless = lossless
        self.outgoing, self.incoming = OutgoingStream(), IncomingStream()
        self.frames: list[Frame] = []
        self.closed = False
        self.granted = self.sent = 0
        self.numbers: dict[int, int] = {}
        #: Up to which number a producer may send, if the node says so.
        self.untils: dict[int, int] = {}
        self.calls = 0
        self.channels = 0
        self.attached: Attached | None = None
        #: Frames don't reach the client: it can't know of them when it comes back.
        self.deaf = False
        #: Its frames don't say how far it has received.
        self.mute = False
        self.dial()

    def dial(self) -> None:
        """A new link."""
        self.link, self.server = self.house.link(lossless=self.lossless)
        self.receiver = Receiver(self.received, self.lost)
        self.link.start(self.receiver)
        self.closed = False

    def lost(self) -> None:
        self.closed = True

    def received(self, frames: list[Frame]) -> None:
        for frame in frames:
            if self.deaf:
                continue
            if frame.type is not FrameType.CLOSE:
                self.incoming.accept(frame)
                self.outgoing.arrived(frame.received)
            if frame.type is FrameType.ATTACHED and not header_of(frame, Attached).resumed:
                self.outgoing, self.incoming = OutgoingStream(), IncomingStream()
                self.granted = self.sent = 0
            if frame.type is FrameType.CREDIT:
                if frame.channel:
                    self.untils[frame.channel] = frame.first
                else:
                    self.granted = frame.first
            self.frames.append(frame)

    # -- out

    def send(self, frame_type: FrameType, header: Header | None = None, *, flush: bool = True, **fields: Any) -> Frame:
        """Send a frame of any type."""
        frame = Frame(frame_type, header=b"" if header is None else header.encode(), **fields)
        self.outgoing.number(frame, keep=not self.lossless)
        frame.received = 0 if self.mute else self.incoming.last
        if frame_type is FrameType.SEND:
            self.sent += frame.size_bytes
        if not self.closed:
            self.link.send(frame)
            if flush:
                self.link.flush()
                self.house.after_frame()
        return frame

    def shake(self, **attach: Any) -> Attached:
        """The handshake."""
        self.send(FrameType.HELLO, Hello(oldest=1, newest=1, label="test"))
        self.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
        self.send(FrameType.ATTACH, Attach(**attach))
        found = self.last(FrameType.ATTACHED)
        self.attached = header_of(found, Attached)
        return self.attached

    def drop(self) -> None:
        """The link breaks."""
        self.link.close()
        self.closed = True

    def resume(self, **changed: Any) -> Attached:
        """Come back to the session, and send again what had not arrived."""
        assert self.attached is not None
        self.deaf = False
        self.dial()
        wanted = {"session": self.attached.session, "key": self.attached.key, "received": self.incoming.last}
        attached = self.shake(**{**wanted, **changed})
        if attached.resumed:
            for frame in self.outgoing.resume(attached.received):
                frame.received = self.incoming.last
                self.link.send(frame)
            self.link.flush()
            self.house.after_frame()
        return attached

    def produce(self, address: str = "q", producer: bytes = PRODUCER) -> int:
        """Open a channel for sends; returns the channel."""
        self.channels += 1
        answer = self.request(FrameType.PRODUCE, Produce(producer=producer, address=address), channel=self.channels)
        if answer is not None:
            self.numbers[self.channels] = int(answer.get("number", 0))
            if "until" in answer:
                self.untils[self.channels] = int(answer["until"])
        return self.channels

    def consume(self, queue: str = "q", window: int = 1_000, window_bytes: int = 1 << 24, **options: Any) -> int:
        """Open a channel for deliveries; returns the channel."""
        self.channels += 1
        header = Consume(queue=queue, window=window, window_bytes=window_bytes, **options)
        self.request(FrameType.CONSUME, header, channel=self.channels)
        return self.channels

    def put(
        self,
        channel: int,
        *bodies: bytes,
        envelopes: Sequence[Envelope] | None = None,
        durable: bool = True,
        flags: int = 0,
        first: int = 0,
    ) -> int:
        """Send a run; returns the number of its last message."""
        run = encode_run(list(bodies), envelopes)
        first = first or self.numbers[channel] + 1
        self.numbers[channel] = max(self.numbers[channel], first + run.rows - 1)
        self.send(
            FrameType.SEND,
            flags=flags | (FLAG_DURABLE if durable else 0),
            channel=channel,
            first=first,
            count=run.rows,
            table=run.table,
            body=run.body,
        )
        return first + run.rows - 1

    def settle(self, channel: int, *ranges: tuple[int, int], flags: int = 0, call: int = 0) -> None:
        self.send(
            FrameType.SETTLE, flags=flags, channel=channel, first=call, count=len(ranges), table=encode_ranges(ranges)
        )

    def leave(self, channel: int, handed: int = 0) -> dict[str, Any] | None:
        return self.request(FrameType.LEAVE, Leave(handed=handed), channel=channel)

    def request(self, frame_type: FrameType, header: Header, **fields: Any) -> dict[str, Any] | None:
        """Send a frame with a call id; returns the answer's values, None if it has not come yet."""
        self.calls += 1
        self.send(frame_type, header, first=self.calls, **fields)
        answer = self.answer(self.calls)
        return None if answer is None else answer.named

    def call(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        flat = tuple(item for pair in arguments.items() for item in pair)
        return self.request(FrameType.CALL, Call(operation=operation, arguments=flat))

    def close(self) -> None:
        """Say good-bye."""
        self.send(FrameType.CLOSE, Close())

    # -- in

    def all(self, frame_type: FrameType) -> list[Frame]:
        return [frame for frame in self.frames if frame.type is frame_type]

    def last(self, frame_type: FrameType) -> Frame:
        return self.all(frame_type)[-1]

    def answer(self, call: int) -> Answer | None:
        """The answer to a call; there is one at most."""
        found = [header_of(frame, Answer) for frame in self.all(FrameType.ANSWER) if frame.first == call]
        assert len(found) <= 1, "a call is answered once"
        return found[0] if found else None

    @property
    def code(self) -> int:
        """The code of the last answer."""
        return header_of(self.last(FrameType.ANSWER), Answer).code

    @property
    def confirmed(self) -> list[tuple[int, int]]:
        """Channel and number of each confirm."""
        return [(frame.channel, frame.first) for frame in self.all(FrameType.CONFIRM)]

    def refused(self) -> list[tuple[int, int, int]]:
        """First number, count and code of each refusal."""
        found = []
        for frame in self.all(FrameType.REFUSE):
            header: Any = SCHEMAS[FrameType.REFUSE].decode(frame.header)
            found.append((frame.first, header.messages, header.code))
        return found

    def all_closed(self) -> bool:
        """Whether the node has ended the connection."""
        return self.closed or bool(self.all(FrameType.CLOSE))

    def good_bye(self) -> Close:
        """Why the connection was ended."""
        return header_of(self.last(FrameType.CLOSE), Close)

    def got(self, channel: int) -> list[Got]:
        """All messages delivered on a channel."""
        messages = []
        for frame in self.all(FrameType.DELIVER):
            if frame.channel == channel:
                messages += read_deliver(frame)
        return messages

    def bodies(self, channel: int) -> list[bytes]:
        return [message.body for message in self.got(channel)]


def as_user(house: House, user: str) -> RawClient:
    """A client whose session belongs to this user."""
    client = house.client()
    assert client.attached is not None
    session = house.sessions.by_number[client.attached.session]
    session.principal.owner = ("client", user)
    session.principal.rights = house.core.access.of(session.principal.owner)
    return client


def widen(house: House, memory_bytes: int) -> None:
    """From here on there is so much memory, for what waits and for what consumers hold."""
    core = house.core
    core.memory.limit_bytes = memory_bytes
    core.memory.unacked.free_bytes += memory_bytes - core.memory.unacked.bound_bytes
    core.memory.unacked.bound_bytes = memory_bytes


def read_deliver(frame: Frame) -> list[Got]:
    """The messages of a DELIVER frame."""
    header = header_of(frame, Deliver)
    view = RunView(RunBytes(frame.count, bytes(frame.table), header.base, frame.body))
    counts = header.delivery_counts(frame.count)
    return [
        Got(
            frame.first + row,
            header.sequence + row * header.step,
            header.number + row * header.step * header.stride,
            view.body(row),
            counts.get(row, 1),
        )
        for row in range(frame.count)
    ]


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()
