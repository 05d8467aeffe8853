"""Links and streams of a term: nothing leaves the node by them once the term is over."""

from __future__ import annotations

from meshq.abc import Buffer, FrameReceiver, Listener, Network, Stream, TermGuard
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.wire import Frame, Link


class GuardedNetwork(Network):
    """The network of a node in a term."""

    def __init__(self, inner: Network, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def connect(self, host: str, port: int) -> Stream:
        """Open a stream."""
        return GuardedStream(await self._inner.connect(host, port), self._guard)

    async def listen(self, host: str, port: int) -> Listener:
        """Listen."""
        return GuardedListener(await self._inner.listen(host, port), self._guard)


class GuardedListener(Listener):
    """A listener of a node in a term."""

    def __init__(self, inner: Listener, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def accept(self) -> Stream:
        """Accept the next connection."""
        return GuardedStream(await self._inner.accept(), self._guard)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._inner.port

    def close(self) -> None:
        """Stop listening."""
        self._inner.close()


class GuardedStream(Stream):
    """A stream that takes nothing more once the term is over."""

    def __init__(self, inner: Stream, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    def send_nowait(self, data: Buffer) -> int:
        if not self._guard.may_act():
            self._inner.close()
            raise ConnectionBrokenError("the node may not act any more") from ClosedError("its term is over")
        return self._inner.send_nowait(data)

    async def flush(self) -> None:
        await self._inner.flush()

    async def receive(self, size_max: int) -> bytes:
        return await self._inner.receive(size_max)

    def gone(self) -> bool:
        return self._inner.gone()

    def close(self) -> None:
        self._inner.close()

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def binding(self) -> bytes:
        return self._inner.binding

    @property
    def identities(self) -> tuple[str, ...]:
        return self._inner.identities

    @property
    def server_name(self) -> str:
        return self._inner.server_name


class GuardedLink(Link):
    """The node's side of a link within the process, which hands nothing over once the term is over."""

    def __init__(self, inner: Link, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard
        self._out: list[Frame] = []
        self.lossless: bool = inner.lossless
        self.local: bool = inner.local
        self.peer: str = inner.peer

    def start(self, receiver: FrameReceiver[Frame]) -> None:
        """Hand over received frames."""
        self._inner.start(receiver)

    def send(self, frame: Frame) -> None:
        """Queue a frame."""
        self._out.append(frame)

    def flush(self) -> None:
        """Hand over the queued frames, if the node may act."""
        out, self._out = self._out, []
        if self._guard.may_act():
            for frame in out:
                self._inner.send(frame)
            self._inner.flush()

    def close(self) -> None:
        """End the link on both sides."""
        self.flush()
        self._inner.close()

    def admit(self) -> None:
        """Allow large frames."""
        self._inner.admit()
