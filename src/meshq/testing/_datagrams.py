"""Datagrams in memory, between named hosts."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import trio

from meshq.abc import Datagrams, DatagramSocket
from meshq.errors import BusyError, ClosedError, UsageError
from meshq.testing._network_host import EPHEMERAL_PORT_MIN, LOOPBACK, WILDCARD

#: Datagrams that a socket keeps for a slow reader; the newest are dropped, as by a kernel.
WAITING_MAX: Final = 1_024


class NoDatagrams(Datagrams):
    """The datagrams of a simulation that was given none."""

    __slots__ = ()

    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        raise UsageError("this simulation has no datagrams")

    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        raise UsageError("this simulation has no datagrams")


class DatagramPaths(Protocol):
    """The ways of datagrams from host to host."""

    async def may_run(self, host: str) -> None:
        """Wait while the process on a host is paused, and for ever once it is dead.

        Checkpoint: always.  Cancellation: nothing has changed.
        """

    def carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` when a datagram from ``source`` is at ``target``: never, once, or twice."""


class InstantPaths:
    """Ways on which each datagram arrives at once."""

    async def may_run(self, host: str) -> None:
        """Let others run.  Checkpoint: always.  Cancellation: nothing has changed."""
        await trio.lowlevel.checkpoint()

    def carry(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Let the datagram arrive."""
        arrive()


class MemoryDatagrams:
    """Datagrams in memory between named hosts: ``host(name)`` is the ``meshq.abc.Datagrams`` of one host.

    Other hosts send to ``name`` and a port.  What is sent from a loopback address stays on its host.  ``cut`` loses
    every datagram between hosts, until ``heal``.  ``paths``: the ways between hosts; None: each datagram arrives at
    once.  The datagrams of a ``MemoryNetwork`` have its ways, with their faults.
    """

    def __init__(self, paths: DatagramPaths | None = None) -> None:
        self._paths = InstantPaths() if paths is None else paths
        self._sockets: dict[MemoryDatagramSocket, None] = {}
        self._next_port = EPHEMERAL_PORT_MIN
        self._cut = False

    def host(self, name: str) -> Datagrams:
        """Return the datagrams as the processes of a host see them."""
        return _HostDatagrams(self, name)

    def cut(self) -> None:
        """Lose every datagram between hosts from now on."""
        self._cut = True

    def heal(self) -> None:
        """Carry datagrams between hosts again."""
        self._cut = False

    def end_process(self, name: str) -> None:
        """Close the sockets of the dead process on a host; calls of that process return only when cancelled."""
        for one in [one for one in self._sockets if one.machine == name]:
            del self._sockets[one]
            one.abandon()

    async def may_run(self, host: str) -> None:
        """Wait while the process on a host is paused.  Checkpoint: always.  Cancellation: nothing has changed."""
        await self._paths.may_run(host)

    def open(self, opened: MemoryDatagramSocket, *, shared: bool) -> MemoryDatagramSocket:
        """Add a socket.  Raises: OSError: its port is taken."""
        taken = [one for one in self._sockets if (one.machine, one.group, one.port) == opened.address]
        if any(not (shared and one.shared) for one in taken):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._sockets[opened] = None
        return opened

    def free_port(self) -> int:
        """Return a port that no socket has had."""
        self._next_port += 1
        return self._next_port - 1

    def forget(self, closed: MemoryDatagramSocket) -> None:
        """Remove a socket."""
        del self._sockets[closed]

    def carry(self, sender: MemoryDatagramSocket, datagram: bytes, host: str, port: int) -> None:
        """Bring a datagram to each socket that it is for."""
        target = sender.machine if host in LOOPBACK else host
        for one in list(self._sockets):
            here = one.machine == sender.machine
            reached = here or not (self._cut or one.loopback or sender.loopback)
            meant = one.group == host if one.group else one.machine == target
            if reached and meant and one.port == port:
                self._paths.carry(sender.machine, one.machine, partial(one.arrived, datagram))


class _HostDatagrams(Datagrams):
    """The datagrams of one host in memory."""

    def __init__(self, world: MemoryDatagrams, name: str) -> None:
        self._world = world
        self._name = name

    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        await self._world.may_run(self._name)
        return self._open(host, port, "", shared=shared)

    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        await self._world.may_run(self._name)
        return self._open(host, port, group, shared=True)

    def _open(self, host: str, port: int, group: str, *, shared: bool) -> DatagramSocket:
        if host not in (*LOOPBACK, *WILDCARD, self._name):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        port = port or self._world.free_port()
        made = MemoryDatagramSocket(self._world, self._name, group, port, loopback=host in LOOPBACK, shared=shared)
        return self._world.open(made, shared=shared)


class MemoryDatagramSocket(DatagramSocket):
    """A socket of a host in memory; ``group`` is empty unless the socket has joined one."""

    def __init__(
        self, world: MemoryDatagrams, machine: str, group: str, port: int, *, loopback: bool, shared: bool
    ) -> None:
        self.machine: str = machine
        self.group: str = group
        self.loopback: bool = loopback
        self.shared: bool = shared
        self._port = port
        self._world = world
        self._waiting: deque[bytes] = deque()
        self._receiving = False
        self._closed = False
        # The process died; its calls return only when cancelled.
        self._dead = False
        self._changed = trio.Event()

    @property
    def address(self) -> tuple[str, str, int]:
        """The host, the group and the port."""
        return self.machine, self.group, self._port

    @property
    def port(self) -> int:
        return self._port

    async def send(self, datagram: bytes, host: str, port: int) -> None:
        await self._world.may_run(self.machine)
        if self._dead:
            await trio.sleep_forever()
        self._check_open()
        self._world.carry(self, bytes(datagram), host, port)

    async def receive(self) -> bytes:
        if self._receiving:
            raise BusyError("two tasks receive from one socket")
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint()
            while not self._waiting:
                self._check_open()
                await self._changed.wait()
            self._check_open()
            return self._waiting.popleft()
        finally:
            self._receiving = False

    def close(self) -> None:
        if not self._closed and not self._dead:
            self._closed = True
            self._world.forget(self)
            self._wake()

    def abandon(self) -> None:
        """End the socket of a process that died: nothing arrives any more."""
        self._dead = True
        self._waiting.clear()

    def arrived(self, datagram: bytes) -> None:
        """Take in a datagram; a socket that is closed loses it."""
        if not (self._closed or self._dead) and len(self._waiting) < WAITING_MAX:
            self._waiting.append(datagram)
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the socket is closed")
