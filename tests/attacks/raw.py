"""A client that speaks the protocol by hand: it says what a client of ours never would, or keeps quiet."""

from __future__ import annotations

import struct

import trio

from meshq.wire import MECHANISM_NONE, Attach, Authenticate, Frame, FrameType, Header, Hello, ReceiveBuffer, encode


class Conversation:
    """A handshake in turn over one stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = ReceiveBuffer(1 << 24)
        self._heard: list[Frame] = []

    async def say(self, header: Header, **counters: int) -> Frame:
        """Say a frame with this header."""
        frame = Frame(header.frame_type, header=header.encode(), **counters)
        await self._stream.send_all(encode(frame))
        return frame

    async def settle(self, channel: int, first: int, last: int, *, number: int) -> None:
        """Acknowledge deliveries of a channel."""
        table = struct.pack("<2Q", first, last)
        await self._stream.send_all(
            encode(Frame(FrameType.SETTLE, number=number, channel=channel, count=1, table=table))
        )

    async def next(self) -> Frame | None:
        """The next frame; None: the stream has ended."""
        while not self._heard:
            data = await self._stream.receive_some(1 << 16)
            if not data:
                return None
            self._heard += self._buffer.feed(data)
        return self._heard.pop(0)

    async def hear(self, kind: FrameType) -> Frame | None:
        """The next frame, if it is of this kind."""
        frame = await self.next()
        return frame if frame is not None and frame.type is kind else None

    async def attach(self, window_bytes: int) -> bool:
        """Get a session at a broker that asks nobody who they are; whether there is one."""
        await self.say(Hello(oldest=1, newest=1))
        if await self.hear(FrameType.WELCOME) is None:
            return False
        await self.say(Authenticate(mechanism=MECHANISM_NONE))
        if await self.hear(FrameType.AUTHENTICATED) is None:
            return False
        await self.say(Attach(ttl_ms=3_600_000, window_bytes=window_bytes))
        return await self.hear(FrameType.ATTACHED) is not None
