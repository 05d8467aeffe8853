"""Hostile frames: frames of every type with changed bytes, wrong numbers and right checksums, on connections of their
own, some of them behind a login."""

from __future__ import annotations

import random
import zlib
from typing import Final

import trio

from meshq.errors import LocalProtocolError, RemoteProtocolError
from meshq.limits import KIB
from meshq.wire import (
    Attach,
    Frame,
    FrameType,
    Hello,
    encode,
)
from tests.attacks.raw import Conversation

#: Sources of the connections; the whole of 127/8 is this host.
SOURCES: Final = 50
#: Of so many frames, one is said by a user who is logged in.
BEHIND_A_LOGIN: Final = 5
#: Connections at a time, and seconds for each.
AT_A_TIME: Final = 16
PATIENCE_S: Final = 3.0
#: Where the check stands, and where the fixed header ends.
CHECK: Final = slice(52, 56)
HEADER_BYTES: Final = slice(6, 8)
ROWS: Final = slice(8, 12)
HEADERS: Final = (
    Hello(oldest=1, newest=1, role="peer").encode(),
    Attach(session=1, key=bytes(16), ttl_ms=3_600_000, window_bytes=1 << 30).encode(),
    b"\x81\xa1a\xc0",
    b"\xdf\xff\xff\xff\xff",
    b"",
)


def hostile_frame(rng: random.Random) -> bytes:
    """The bytes of a frame that is wrong somehow, half of them with a right checksum."""
    kind = rng.choice(list(FrameType))
    counters = {name: rng.choice((0, 1, 2**31, 2**63 - 1)) for name in ("number", "received", "first", "stamp")}
    frame = Frame(kind, channel=rng.choice((0, 1, 2**32 - 1)), header=rng.choice(HEADERS), **counters)
    frame.body = rng.randbytes(rng.choice((0, 1, KIB)))
    try:
        data = bytearray(encode(frame))
    except LocalProtocolError:
        # Not every type has all of that.
        data = bytearray(encode(Frame(kind, **counters)))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(2, len(data))] = rng.randrange(256)
    if rng.randrange(2):
        end = 56 + int.from_bytes(data[HEADER_BYTES], "little") + 20 * int.from_bytes(data[ROWS], "little")
        checked = bytes(data[:52]) + bytes(data[56 : min(end, len(data))])
        data[CHECK] = zlib.crc32(checked).to_bytes(4, "little")
    return bytes(data[: rng.randrange(1, len(data) + 1)]) if not rng.randrange(8) else bytes(data)


class Hostiles:
    """Whoever sends hostile frames to a broker, as many at a time as there are, until so many are said."""

    def __init__(self, port: int, rng: random.Random, user: str, password: str) -> None:
        self._port = port
        self._rng = rng
        self._user = user
        self._password = password
        #: Frames that were said.
        self.said = 0

    async def run(self, frames: int) -> None:
        """Say frames until there were so many; a broker that is down is waited for."""
        async with trio.open_nursery() as nursery:
            for _ in range(AT_A_TIME):
                nursery.start_soon(self._go_on, frames)

    async def _go_on(self, frames: int) -> None:
        while self.said < frames:
            self.said += 1
            behind = not self.said % BEHIND_A_LOGIN
            said = False
            with trio.move_on_after(PATIENCE_S):
                try:
                    said = await self._one(behind)
                except (OSError, trio.BrokenResourceError, RemoteProtocolError):
                    # The broker is down, or has just died.
                    await trio.sleep(0.05)
            self.said -= not said

    async def _one(self, behind_a_login: bool) -> bool:
        """Say one frame on a connection of its own; whether it was said."""
        source = f"127.0.2.{1 + self._rng.randrange(SOURCES)}"
        stream = await trio.open_tcp_stream("127.0.0.1", self._port, local_address=source)
        async with stream:
            if behind_a_login and not await Conversation(stream).attach(64 * KIB, self._user, self._password):
                return False
            await stream.send_all(hostile_frame(self._rng))
            with trio.move_on_after(0.05):
                while await stream.receive_some(1 << 16):
                    pass
        return True
