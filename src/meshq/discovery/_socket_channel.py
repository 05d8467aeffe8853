"""Channels of broadcast endpoints that are made of sockets for datagrams."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastSender, DatagramSocket
from meshq.errors import BrokenError, UsageError


def check_datagram(datagram: bytes) -> None:
    """Check the size of a datagram before anything of it is sent.

    Raises:
        UsageError: it is empty, or too large.
    """
    if not 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX:
        raise UsageError(f"a datagram has 1 to {limits.DATAGRAM_BYTES_MAX} bytes; this one has {len(datagram)}")


class SocketSender(BroadcastSender):
    """A sender that sends each datagram to a few places, over one socket."""

    def __init__(self, opened: DatagramSocket, targets: Sequence[tuple[str, int]]) -> None:
        self._socket = opened
        self._targets = tuple(targets)

    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram to each place; the places after one that can't be reached get it, too."""
        check_datagram(datagram)
        await trio.lowlevel.checkpoint()
        failed: list[tuple[str, OSError]] = []
        for host, port in self._targets:
            try:
                await self._socket.send(datagram, host, port)
            except OSError as error:
                failed.append((f"{host}:{port}", error))
        if failed:
            text = ", ".join(f"{place} ({error.strerror or error})" for place, error in failed)
            raise BrokenError(f"nothing can be sent to {text}") from failed[0][1]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class SocketChannel(BroadcastChannel):
    """A channel of a sender and of a socket that receives; ``close`` closes both."""

    def __init__(self, sender: BroadcastSender, receiving: DatagramSocket) -> None:
        self._sender = sender
        self._receiving = receiving

    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram."""
        await self._sender.broadcast(datagram)

    async def receive(self) -> bytes:
        """Receive the next datagram."""
        try:
            return await self._receiving.receive()
        except OSError as error:
            raise BrokenError(f"nothing can be received: {error.strerror or error}") from error

    def close(self) -> None:
        """Close both sockets."""
        self._sender.close()
        self._receiving.close()
