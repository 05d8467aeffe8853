"""The endpoint of a list of addresses, for networks without multicast."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, Final

import attrs

from meshq.abc import BroadcastChannel, BroadcastEndpoint, BroadcastSender, DatagramSocket, Env
from meshq.discovery._socket_channel import SocketChannel, SocketSender
from meshq.errors import BrokenError, SettingsError
from meshq.loops import check_in_trio

PORT_MAX: Final = 65_535
#: Addresses of one list: each announcement is sent to all of them.
ADDRESSES_MAX: Final = 64
#: What the system says of an address that another socket has, or another host.
_NOT_HERE: Final = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})
_ALLOWED: Final = f"a list of 1 to {ADDRESSES_MAX} different texts HOST:PORT, over IPv4"


def _addresses(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SettingsError("addresses", value, _ALLOWED)
    return tuple(value)


def _all_addresses(instance: Any, attribute: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
    for address in value[:ADDRESSES_MAX]:
        _parsed(address)
    # Compared last: what is no text may have no hash.
    if not 0 < len(value) <= ADDRESSES_MAX or len(set(value)) < len(value):
        raise SettingsError(attribute.name, value, _ALLOWED)


def _parsed(address: Any) -> tuple[str, int]:
    """Return host and port.  Raises: SettingsError."""
    host, colon, port = address.rpartition(":") if type(address) is str else ("", "", "")
    plain = colon and host and host.isprintable() and not set(host) & set(" /@:[]")
    if not plain or not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= PORT_MAX:
        raise SettingsError("addresses", address, "HOST:PORT, over IPv4")
    return host, int(port)


@attrs.frozen
class StaticUnicast(BroadcastEndpoint):
    """A list of addresses: each datagram is sent to all of them.

    ``addresses`` are texts ``HOST:PORT``, the same list on all hosts.  Whoever listens takes the first address of the
    list that belongs to this host and is free; whoever only announces takes none.

    Raises:
        SettingsError: the list isn't allowed.
    """

    addresses: tuple[str, ...] = attrs.field(converter=_addresses, validator=_all_addresses)

    async def open(self, env: Env) -> BroadcastChannel:
        """Take the first address of the list that is free here.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: none of the addresses can be bound here.
        """
        check_in_trio("Broker")
        opened = await self._bind(env)
        return SocketChannel(SocketSender(opened, self._targets), opened)

    async def open_sender(self, env: Env) -> BroadcastSender:
        """Open a socket from which is sent to the list.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: no socket can be opened.
        """
        check_in_trio("Broker")
        loopback = all(host == "localhost" or host.startswith("127.") for host, _ in self._targets)
        try:
            opened = await env.datagrams.bind("127.0.0.1" if loopback else "", 0)
        except OSError as error:
            raise BrokenError(f"no socket can be opened: {error.strerror or error}") from error
        return SocketSender(opened, self._targets)

    async def _bind(self, env: Env) -> DatagramSocket:
        last: OSError | None = None
        for host, port in self._targets:
            try:
                return await env.datagrams.bind(host, port)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise BrokenError(f"{host}:{port} can't be bound: {error.strerror or error}") from error
                last = error
        raise BrokenError(f"no address of the list is free on this host: {', '.join(self.addresses)}") from last

    @property
    def _targets(self) -> list[tuple[str, int]]:
        return [_parsed(address) for address in self.addresses]
