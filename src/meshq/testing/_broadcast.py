"""A broadcast endpoint in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env
from meshq.errors import ClosedError, UsageError

#: Datagrams that a channel keeps for a slow reader; the oldest are dropped first.
WAITING_MAX: Final = 1_024


class MemoryBroadcast(BroadcastEndpoint):
    """A broadcast endpoint in memory: channels of one object hear each other, and themselves."""

    def __init__(self) -> None:
        self._channels: dict[MemoryBroadcastChannel, None] = {}
        self._cut = False

    async def open(self, env: Env) -> BroadcastChannel:
        """Open a channel."""
        await trio.lowlevel.checkpoint()
        channel = MemoryBroadcastChannel(self._carry, self._channels.pop)
        self._channels[channel] = None
        return channel

    def cut(self) -> None:
        """Lose every datagram from now on."""
        self._cut = True

    def heal(self) -> None:
        """Carry datagrams again."""
        self._cut = False

    def _carry(self, datagram: bytes) -> None:
        if not self._cut:
            for channel in self._channels:
                channel.arrived(datagram)


class MemoryBroadcastChannel(BroadcastChannel):
    """A channel of a ``MemoryBroadcast``."""

    def __init__(self, carry: Callable[[bytes], None], forget: Callable[[MemoryBroadcastChannel], None]) -> None:
        self._carry = carry
        self._forget = forget
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._closed = False
        self._changed = trio.Event()

    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram to every open channel."""
        if not 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX:
            raise UsageError(f"a datagram has 1 to {limits.DATAGRAM_BYTES_MAX} bytes; this one has {len(datagram)}")
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._carry(bytes(datagram))

    async def receive(self) -> bytes:
        """Receive the next datagram."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self._check_open()
            await self._changed.wait()
        self._check_open()
        return self._waiting.popleft()

    def close(self) -> None:
        """Close the channel."""
        if not self._closed:
            self._closed = True
            self._forget(self)
            self._wake()

    def arrived(self, datagram: bytes) -> None:
        """Take in a datagram."""
        self._waiting.append(datagram)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the channel is closed")
