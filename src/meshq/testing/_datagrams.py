"""Datagrams in memory, between named hosts."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Final

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


class MemoryDatagrams:
    """Datagrams in memory between named hosts: ``host(name)`` is the ``meshq.abc.Datagrams`` of one host.

    Other hosts send to ``name`` and a port.  What is sent from a loopback address stays on its host.  ``cut`` loses
    every datagram between hosts, until ``heal``.
    """

    def __init__(self) -> None:
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
        for one in self._sockets:
            here = one.machine == sender.machine
            reached = here or not (self._cut or one.loopback or sender.loopback)
            meant = one.group == host if one.group else one.machine == target
            if reached and meant and one.port == port:
                one.arrived(datagram)


class _HostDatagrams(Datagrams):
    """The datagrams of one host in memory."""

    def __init__(self, world: MemoryDatagrams, name: str) -> None:
        self._world = world
        self._name = name

    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        await trio.lowlevel.checkpoint()
        return self._open(host, port, "", shared=shared)

    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        await trio.lowlevel.checkpoint()
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
        self._changed = trio.Event()

    @property
    def address(self) -> tuple[str, str, int]:
        """The host, the group and the port."""
        return self.machine, self.group, self._port

    @property
    def port(self) -> int:
        return self._port

    async def send(self, datagram: bytes, host: str, port: int) -> None:
        await trio.lowlevel.checkpoint()
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
        if not self._closed:
            self._closed = True
            self._world.forget(self)
            self._wake()

    def arrived(self, datagram: bytes) -> None:
        """Take in a datagram."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(datagram)
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the socket is closed")
