"""A client that speaks the protocol by hand: it says what a client of ours never would, or keeps quiet."""

from __future__ import annotations

import os
import struct
from functools import lru_cache

import trio

from meshq.wire import (
    MECHANISM_NONE,
    NONCE_BYTES,
    Attach,
    Authenticate,
    Challenge,
    ClientExchange,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    ReceiveBuffer,
    encode,
    header_of,
    salted_password,
)


class Conversation:
    """A handshake in turn over one stream, and whatever is said after it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = ReceiveBuffer(1 << 24)
        self._heard: list[Frame] = []

    async def say(self, header: Header, **counters: int) -> Frame:
        """Say a frame with this header."""
        frame = Frame(header.frame_type, header=header.encode(), **counters)
        await self.stream.send_all(encode(frame))
        return frame

    async def settle(self, channel: int, first: int, last: int, *, number: int) -> None:
        """Acknowledge deliveries of a channel."""
        table = struct.pack("<2Q", first, last)
        await self.stream.send_all(
            encode(Frame(FrameType.SETTLE, number=number, channel=channel, count=1, table=table))
        )

    async def next(self) -> Frame | None:
        """The next frame; None: the stream has ended."""
        while not self._heard:
            data = await self.stream.receive_some(1 << 16)
            if not data:
                return None
            self._heard += self._buffer.feed(data)
        return self._heard.pop(0)

    async def hear(self, kind: FrameType) -> Frame | None:
        """The next frame, if it is of this kind."""
        frame = await self.next()
        return frame if frame is not None and frame.type is kind else None

    async def log_in(self, user: str, password: str) -> bool:
        """Say who it is, or that it is nobody at a broker that asks nobody; whether it is believed."""
        hello = await self.say(Hello(oldest=1, newest=1))
        welcome = await self.hear(FrameType.WELCOME)
        if welcome is None:
            return False
        if not user:
            await self.say(Authenticate(mechanism=MECHANISM_NONE))
            return await self.hear(FrameType.AUTHENTICATED) is not None
        exchange = ClientExchange(HandshakeFrames("client", hello, welcome, b""), user, os.urandom(NONCE_BYTES))
        await self.say(exchange.begin)
        challenged = await self.hear(FrameType.CHALLENGE)
        if challenged is None:
            return False
        challenge = header_of(challenged, Challenge)
        salted = salted_password_once(password.encode(), challenge.salt, challenge.iterations)
        await self.say(exchange.prove(challenge, salted))
        return await self.hear(FrameType.AUTHENTICATED) is not None

    async def attach(self, window_bytes: int, user: str = "", password: str = "") -> bool:
        """Get a session; whether there is one."""
        if not await self.log_in(user, password):
            return False
        await self.say(Attach(ttl_ms=3_600_000, window_bytes=window_bytes))
        return await self.hear(FrameType.ATTACHED) is not None


@lru_cache(maxsize=16)
def salted_password_once(password: bytes, salt: bytes, iterations: int) -> bytes:
    """What is derived from a password; whoever comes often derives it once."""
    return salted_password(password, salt, iterations)
