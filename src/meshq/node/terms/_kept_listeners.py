"""Listening sockets that outlive the turns of a node as waiting and as active."""

from __future__ import annotations

import trio

from meshq.abc import Listener, Network, Stream
from meshq.errors import ClosedError


class KeptListeners(Network):
    """A network whose listeners stay bound when a node closes them, until ``close``.

    A node that waits and the active node after it listen at the same ports, also where port 0 was asked for, and a
    client that comes in between is not refused by the system.
    """

    def __init__(self, inner: Network) -> None:
        self._inner = inner
        # By what was asked for, in the order of the acceptors.
        self._kept: dict[tuple[str, int], list[KeptListener]] = {}

    async def connect(self, host: str, port: int) -> Stream:
        """Open a stream."""
        return await self._inner.connect(host, port)

    async def listen(self, host: str, port: int) -> Listener:
        """Listen: reuse a listener that is bound and free, or bind a new listener."""
        kept = self._kept.setdefault((host, port), [])
        for listener in kept:
            if not listener.used:
                await trio.lowlevel.checkpoint()
                listener.used = True
                return listener
        listener = KeptListener(await self._inner.listen(host, port))
        kept.append(listener)
        return listener

    def close(self) -> None:
        """Stop listening."""
        for kept in self._kept.values():
            for listener in kept:
                listener.inner.close()
        self._kept.clear()


class KeptListener(Listener):
    """A listener that stays bound when it is closed."""

    def __init__(self, inner: Listener) -> None:
        self.inner: Listener = inner
        #: Whether a node listens there.
        self.used: bool = True
        # Around the call that waits for a connection.
        self._accepting = trio.CancelScope()

    async def accept(self) -> Stream:
        """Accept the next connection."""
        if self.used:
            with trio.CancelScope() as self._accepting:
                return await self.inner.accept()
        await trio.lowlevel.checkpoint_if_cancelled()
        raise ClosedError("the node does not listen any more")

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self.inner.port

    def close(self) -> None:
        """Leave the port to the next turn of the node."""
        self.used = False
        self._accepting.cancel()
