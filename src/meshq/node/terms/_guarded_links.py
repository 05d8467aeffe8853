"""Links and streams of a term: nothing leaves the node by them once the term is over."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, MutableMapping

import attrs

from meshq.abc import (
    Buffer,
    Datagrams,
    DatagramSocket,
    Env,
    FrameReceiver,
    Listener,
    LocalAcceptor,
    Network,
    Stream,
    TermGuard,
)
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.wire import Frame, Link


def guarded_env(env: Env, guard: TermGuard) -> Env:
    """Return the outside of a node in a term: the store fails once the term is over, and nothing is sent."""
    return attrs.evolve(
        env,
        disk=guard.disk(env.disk),
        network=GuardedNetwork(env.network, guard),
        datagrams=GuardedDatagrams(env.datagrams, guard),
        local=GuardedLocals(env.local, guard),
    )


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
        # What the system does not take at once waits in the stream.
        inner.bound(guard.may_act)

    def send_nowait(self, data: Buffer) -> int:
        if not self._guard.may_act():
            self._inner.close()
            raise ConnectionBrokenError("the node may not act any more") from ClosedError("its term is over")
        return self._inner.send_nowait(data)

    async def flush(self) -> None:
        await self._inner.flush()

    async def receive(self, size_max: int) -> bytes:
        return await self._inner.receive(size_max)

    def bound(self, may_send: Callable[[], bool]) -> None:
        guard = self._guard
        self._inner.bound(lambda: guard.may_act() and may_send())

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


class GuardedLocals(MutableMapping[str, LocalAcceptor]):
    """The brokers of the process, as a node in a term reaches them."""

    def __init__(self, inner: MutableMapping[str, LocalAcceptor], guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    def __getitem__(self, name: str) -> LocalAcceptor:
        return GuardedAcceptor(self._inner[name], self._guard)

    def __setitem__(self, name: str, acceptor: LocalAcceptor) -> None:
        self._inner[name] = acceptor

    def __delitem__(self, name: str) -> None:
        del self._inner[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class GuardedAcceptor(LocalAcceptor):
    """A broker of the process, to which a node in a term opens links."""

    def __init__(self, inner: LocalAcceptor, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    def connect_local(self, label: str) -> Link:
        """Open a link, whose near side hands nothing over once the term is over."""
        return GuardedLink(self._inner.connect_local(label), self._guard)


class GuardedDatagrams(Datagrams):
    """The datagrams of a node in a term."""

    def __init__(self, inner: Datagrams, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        """Open a socket at an own address."""
        return GuardedDatagramSocket(await self._inner.bind(host, port, shared=shared), self._guard)

    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        """Open a socket that receives for a group."""
        return GuardedDatagramSocket(await self._inner.join(group, port, host), self._guard)


class GuardedDatagramSocket(DatagramSocket):
    """A socket that sends nothing more once the term is over."""

    def __init__(self, inner: DatagramSocket, guard: TermGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def send(self, datagram: bytes, host: str, port: int) -> None:
        """Send a datagram, if the node may act."""
        if not self._guard.may_act():
            raise OSError(errno.ESTALE, "the node may not act any more: its term is over")
        await self._inner.send(datagram, host, port)

    async def receive(self) -> bytes:
        """Receive the next datagram."""
        return await self._inner.receive()

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._inner.port

    def close(self) -> None:
        """Close the socket."""
        self._inner.close()
