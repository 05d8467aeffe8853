"""UDP of this host."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.abc import Datagrams, DatagramSocket
from meshq.errors import BusyError, ClosedError

#: The largest datagram that UDP carries: a datagram is never read in part.
RECEIVE_BYTES: Final = 65_535
#: Hops of multicast: none from a loopback address, else the routers of the local network stop it.
HOPS_LOOPBACK: Final = 0
HOPS: Final = 1
#: ``IP_MULTICAST_ALL`` of Linux, which Python has no name for: 0 keeps out what other sockets of this host have joined.
MULTICAST_ALL: Final = 49
ANY: Final = "0.0.0.0"


class UdpSocket(DatagramSocket):
    """An open UDP socket."""

    __slots__ = ("_closed", "_port", "_receiving", "_socket")

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._port: int = opened.getsockname()[1]
        self._receiving = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<UdpSocket port={self._port} {'closed' if self._closed else 'open'}>"

    @property
    def port(self) -> int:
        return self._port

    async def send(self, datagram: bytes, host: str, port: int) -> None:
        address = await _address(host, port)
        await trio.lowlevel.checkpoint()
        while True:
            self._check_open()
            try:
                self._socket.sendto(datagram, address)
                return
            except BlockingIOError:
                await self._ready(trio.lowlevel.wait_writable)

    async def receive(self) -> bytes:
        if self._receiving:
            raise BusyError("two tasks receive from one socket")
        self._receiving = True
        try:
            while True:
                self._check_open()
                await self._ready(trio.lowlevel.wait_readable)
                try:
                    return self._socket.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
        finally:
            self._receiving = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    async def _ready(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        try:
            await wait(self._socket)
        except trio.ClosedResourceError:
            raise ClosedError("the socket is closed") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the socket is closed")


class UdpDatagrams(Datagrams):
    """UDP over IPv4."""

    __slots__ = ()

    async def bind(self, host: str, port: int, *, shared: bool = False) -> DatagramSocket:
        interface, _ = await _address(host or ANY, port)
        await trio.lowlevel.checkpoint()
        opened = _open(reuse=shared)
        try:
            hops = HOPS_LOOPBACK if ipaddress.IPv4Address(interface).is_loopback else HOPS
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            if interface != ANY:
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            opened.bind((interface, port))
        except BaseException:
            opened.close()
            raise
        return UdpSocket(opened)

    async def join(self, group: str, port: int, host: str) -> DatagramSocket:
        interface, _ = await _address(host or ANY, port)
        await trio.lowlevel.checkpoint()
        opened = _open(reuse=True)
        try:
            # Bound to the group: what is sent to the same port of another group, or of this host, doesn't come here.
            opened.bind((group, port))
            if sys.platform == "linux":
                opened.setsockopt(socket.IPPROTO_IP, MULTICAST_ALL, 0)
            membership = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(interface))
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except BaseException:
            opened.close()
            raise
        return UdpSocket(opened)


def _open(*, reuse: bool) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setblocking(False)
    if reuse:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "darwin":
            # macOS shares a port only with this option.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return opened


async def _address(host: str, port: int) -> tuple[str, int]:
    """Return the IPv4 address of a host.  Raises: OSError."""
    try:
        found = await trio.socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        # A name that no host can have, for example with an empty part.
        await trio.lowlevel.checkpoint()
        raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is no name of a host: {error}") from error
    address, resolved = found[0][4][:2]
    return str(address), int(resolved)
