"""A byte stream that a test can cut, silence and jam."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from meshq import abc
from meshq.errors import ConnectionBrokenError


class MemoryStream(abc.Stream):
    """The client's end of a connection to a fake node."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._arrived: deque[bytes] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._error: str | None = None
        self._ended = False
        self.closed = False
        #: Nothing gets through any more, and nobody says so.
        self.silent = False
        #: Bytes are taken but wait unsent.
        self.stuck = False
        self.waiting: list[bytes] = []
        self.on_bytes: Callable[[bytes], None] = lambda data: None

    @property
    def peer(self) -> str:
        return self._peer

    def send_nowait(self, data: abc.Buffer) -> int:
        if self.closed or self._error is not None:
            raise ConnectionBrokenError(f"the connection to {self._peer} is lost") from BrokenPipeError("cut")
        if self.stuck or self.waiting:
            self.waiting.append(bytes(data))
        elif not self.silent:
            self.on_bytes(bytes(data))
        return sum(map(len, self.waiting))

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()
        while self.waiting:
            if self.closed or self._error is not None:
                raise ConnectionBrokenError(f"the connection to {self._peer} is lost") from BrokenPipeError("cut")
            if self.stuck:
                await self._lot.park()
            else:
                self.on_bytes(self.waiting.pop(0))

    async def receive(self, size_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._arrived:
            if self.closed or self._error is not None:
                text = self._error or f"the connection to {self._peer} is closed"
                raise ConnectionBrokenError(text) from ConnectionResetError("cut")
            if self._ended:
                return b""
            await self._lot.park()
        return self._arrived.popleft()

    def close(self) -> None:
        self.closed = True
        self._lot.unpark_all()

    def arrive(self, data: bytes) -> None:
        """The node has sent bytes."""
        if not self.silent and data:
            self._arrived.append(data)
            self._lot.unpark_all()

    def unstick(self) -> None:
        """There is room again: whoever flushes can send what waits."""
        self.stuck = False
        self._lot.unpark_all()

    def end(self) -> None:
        """The node has closed in an orderly way."""
        self._ended = True
        self._lot.unpark_all()

    def cut(self) -> None:
        """The connection breaks; what has not been read is lost."""
        self._arrived.clear()
        self._error = f"the connection to {self._peer} is lost"
        self._lot.unpark_all()
