"""A session of somebody who speaks the protocol by hand over a socket: it says whatever it is told, and keeps what it
hears."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from meshq.wire import (
    FLAG_DURABLE,
    Answer,
    Attach,
    Call,
    Close,
    Consume,
    Deliver,
    Envelope,
    Frame,
    FrameType,
    Header,
    IncomingStream,
    Leave,
    OutgoingStream,
    Produce,
    Refuse,
    RunBytes,
    RunView,
    encode,
    encode_run,
    header_of,
)
from tests.attacks.raw import Conversation


class EndedError(Exception):
    """The broker has ended the connection; ``close`` says why, None if it did not say."""

    def __init__(self, close: Close | None) -> None:
        super().__init__(repr(close))
        self.close = close


class RawSession:
    """Frames out one by one or many at a time, frames in as they are waited for."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._outgoing, self._incoming = OutgoingStream(), IncomingStream()
        self._line = bytearray()
        self._calls = self._channels = 0
        self._granted = self._sent = 0
        #: Frames that were heard, without those that were waited for.
        self.heard: list[Frame] = []
        self.answers: dict[int, Answer] = {}

    # -- out

    def say(self, frame_type: FrameType, header: Header | bytes = b"", **fields: Any) -> Frame:
        """Put a frame in line, with its number."""
        frame = Frame(frame_type, header=header if isinstance(header, bytes) else header.encode(), **fields)
        self._outgoing.number(frame, keep=False)
        frame.received = self._incoming.last
        self._line += encode(frame)
        if frame_type is FrameType.SEND:
            self._sent += frame.size_bytes
        return frame

    def ask(self, frame_type: FrameType, header: Header | bytes, **fields: Any) -> int:
        """Put a frame in line that is answered; returns the number of the call."""
        self._calls += 1
        self.say(frame_type, header, first=self._calls, **fields)
        return self._calls

    async def flush(self) -> None:
        """Send what is in line.

        Raises:
            EndedError: the broker has ended the connection.
        """
        data, self._line = bytes(self._line), bytearray()
        try:
            await self._conversation.stream.send_all(data)
        except trio.BrokenResourceError:
            await self.until(lambda: False)

    async def until(self, done: Callable[[], object]) -> None:
        """Send what is in line, and hear until something is so.

        Raises:
            EndedError: the broker has ended the connection before.
        """
        if self._line:
            await self.flush()
        while not done():
            try:
                frame = await self._conversation.next()
            except trio.BrokenResourceError:
                frame = None
            if frame is None or frame.type is FrameType.CLOSE:
                raise EndedError(None if frame is None else header_of(frame, Close))
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        self._incoming.accept(frame)
        if frame.type is FrameType.ANSWER:
            self.answers[frame.first] = header_of(frame, Answer)
        elif frame.type is FrameType.CREDIT and not frame.channel:
            self._granted = frame.first
        elif frame.type is FrameType.PING:
            self.say(FrameType.PONG)
        else:
            self.heard.append(frame)

    # -- calls

    async def answer(self, call: int) -> Answer:
        """The answer to a call."""
        await self.until(lambda: call in self.answers)
        return self.answers.pop(call)

    async def request(self, frame_type: FrameType, header: Header | bytes, **fields: Any) -> Answer:
        """Say something, and hear the answer."""
        return await self.answer(self.ask(frame_type, header, **fields))

    async def call(self, operation: str, **arguments: Any) -> Answer:
        """Carry out an operation."""
        flat = tuple(item for pair in arguments.items() for item in pair)
        return await self.request(FrameType.CALL, Call(operation=operation, arguments=flat))

    def channel(self) -> int:
        """A number for a producer or consumer."""
        self._channels += 1
        return self._channels

    # -- messages

    def ask_to_produce(self, address: str, producer: bytes, channel: int) -> int:
        """Put in line that a producer opens; returns the number of the call."""
        return self.ask(FrameType.PRODUCE, Produce(producer=producer, address=address), channel=channel)

    def ask_to_leave(self, channel: int) -> int:
        """Put in line that a channel closes; returns the number of the call."""
        return self.ask(FrameType.LEAVE, Leave(), channel=channel)

    async def consume(self, queue: str, **options: Any) -> tuple[int, Answer]:
        """Open a consumer; its channel, and the answer."""
        channel = self.channel()
        header = Consume(queue=queue, **{"window": 1_000, "window_bytes": 1 << 24, **options})
        return channel, await self.request(FrameType.CONSUME, header, channel=channel)

    def put(
        self,
        channel: int,
        first: int,
        *bodies: bytes,
        flags: int = FLAG_DURABLE,
        envelopes: Sequence[Envelope] | None = None,
    ) -> None:
        """Put a run in line."""
        run = encode_run(list(bodies), envelopes)
        fields: dict[str, Any] = {"count": run.rows, "table": run.table, "body": run.body}
        self.say(FrameType.SEND, channel=channel, first=first, flags=flags, **fields)

    async def confirmed(self, channel: int, last: int) -> None:
        """Return when everything up to this number was confirmed or refused."""
        await self.until(lambda: any(frame.channel == channel and self._ends(frame) >= last for frame in self.heard))

    @staticmethod
    def _ends(frame: Frame) -> int:
        if frame.type is FrameType.CONFIRM:
            return frame.first
        return frame.first + header_of(frame, Refuse).messages - 1 if frame.type is FrameType.REFUSE else 0

    def refusals(self) -> list[Refuse]:
        """What was refused so far."""
        return [header_of(frame, Refuse) for frame in self.heard if frame.type is FrameType.REFUSE]

    def settle(self, channel: int, first: int, last: int, *, flags: int = 0, stamp: int = 0) -> None:
        """Put in line what becomes of deliveries."""
        table = struct.pack("<2Q", first, last)
        self.say(FrameType.SETTLE, channel=channel, count=1, table=table, flags=flags, stamp=stamp)

    def bodies(self, channel: int) -> list[bytes]:
        """The bodies of what was delivered so far."""
        found = []
        for frame in self.heard:
            if frame.type is FrameType.DELIVER and frame.channel == channel:
                base = header_of(frame, Deliver).base
                view = RunView(RunBytes(frame.count, bytes(frame.table), base, frame.body))
                found += [view.body(row) for row in range(frame.count)]
        return found


@asynccontextmanager
async def raw_session(
    port: int, user: str = "", password: str = "", *, ttl_ms: int = 60_000, window_bytes: int = 1 << 20
) -> AsyncIterator[RawSession]:
    """A session at a broker, of a user or of nobody."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        conversation = Conversation(stream)
        assert await conversation.log_in(user, password), "nobody came in"
        await conversation.say(Attach(ttl_ms=ttl_ms, window_bytes=window_bytes))
        assert await conversation.hear(FrameType.ATTACHED), "no session was granted"
        yield RawSession(conversation)
