"""The endpoint of a multicast group."""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Any, Final, Self

import attrs

from meshq.abc import BroadcastChannel, BroadcastEndpoint, BroadcastSender, DatagramSocket, Env
from meshq.discovery._socket_channel import SocketChannel, SocketSender
from meshq.errors import BrokenError, SettingsError
from meshq.loops import check_in_trio
from meshq.settings import in_range

PORT_MAX: Final = 65_535
#: The reserved first address of the range, which no group has.
_RESERVED: Final = ipaddress.IPv4Address("224.0.0.0")
#: The groups that have names: an address of 239.255.0.0/16, which routers keep within a site, and one of so many ports.
_NAMED: Final = "239.255"
_NAMED_PORT_FIRST: Final = 20_000
_NAMED_PORTS: Final = 8_192
_NAME_MAX: Final = 100
#: The group that most have, at the address and port that the multicast agent of ActiveMQ uses.
_DEFAULT: Final = ("default", "239.255.2.3", 6_155)


def _group(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    address = _ipv4(value)
    if address is None or not address.is_multicast or address == _RESERVED:
        raise SettingsError(attribute.name, value, "an address from 224.0.0.1 to 239.255.255.255")


def check_interface(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check the address of an interface.  Raises: SettingsError."""
    if value is None:
        return
    address = _ipv4(value)
    if address is None or address.is_multicast:
        raise SettingsError(attribute.name, value, "the IPv4 address of an interface of this host, or None")


def _ipv4(value: Any) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(value) if type(value) is str else None
    except ValueError:
        return None


_port = in_range(1, PORT_MAX, whole=True)


def _bind_port(instance: UDPMulticast, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    _port(instance, attribute, value)
    if instance.bind_address is None:
        raise SettingsError(attribute.name, value, "None, or a port together with bind_address")


@attrs.frozen
class UDPMulticast(BroadcastEndpoint):
    """A multicast group as an endpoint: each member of the group hears each datagram.

    ``group`` and ``port`` are the same for all who shall meet.  ``bind_address``: the IPv4 address of the interface by
    which datagrams leave and arrive; None: the system chooses.  ``bind_port``: the port from which datagrams are sent;
    None: any free one.  Datagrams don't leave the local network, and with a loopback ``bind_address`` not the host.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    group: str = attrs.field(validator=_group)
    port: int = attrs.field(validator=_port)
    bind_address: str | None = attrs.field(default=None, kw_only=True, validator=check_interface)
    bind_port: int | None = attrs.field(default=None, kw_only=True, validator=_bind_port)

    @classmethod
    def named(cls, name: str, *, bind_address: str | None = None, bind_port: int | None = None) -> Self:
        """Return the group of a name, which ``multicast://NAME`` means, too.

        Address and port follow from the name alone; those of ``default`` are 239.255.2.3:6155.

        Raises:
            SettingsError: the name isn't one of letters and digits, or an option isn't allowed.
        """
        if type(name) is not str or not (name.isascii() and name.isalnum()) or len(name) > _NAME_MAX:
            raise SettingsError("group", name, f"a name of 1 to {_NAME_MAX} letters and digits")
        if name == _DEFAULT[0]:
            return cls(*_DEFAULT[1:], bind_address=bind_address, bind_port=bind_port)
        digest = hashlib.sha256(b"meshq multicast group " + name.encode()).digest()
        port = _NAMED_PORT_FIRST + int.from_bytes(digest[2:4]) % _NAMED_PORTS
        return cls(f"{_NAMED}.{digest[0]}.{digest[1]}", port, bind_address=bind_address, bind_port=bind_port)

    async def open(self, env: Env) -> BroadcastChannel:
        """Join the group.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the port or the interface can't be used, or the group can't be joined.
        """
        check_in_trio("Broker")
        sender = await self.open_sender(env)
        try:
            receiving = await self._join(env)
        except BaseException:
            sender.close()
            raise
        return SocketChannel(sender, receiving)

    async def open_sender(self, env: Env) -> BroadcastSender:
        """Open a socket from which is sent to the group.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the port or the interface can't be used.
        """
        check_in_trio("Broker")
        try:
            opened = await env.datagrams.bind(self._interface, self.bind_port or 0, shared=self.bind_port is not None)
        except OSError as error:
            place = f"{self.bind_address or 'any address'}:{self.bind_port or 'any port'}"
            raise BrokenError(f"{place} can't be bound: {error.strerror or error}") from error
        return SocketSender(opened, [(self.group, self.port)])

    async def _join(self, env: Env) -> DatagramSocket:
        try:
            return await env.datagrams.join(self.group, self.port, self._interface)
        except OSError as error:
            text = f"the group {self.group}:{self.port} can't be joined: {error.strerror or error}"
            raise BrokenError(text) from error

    @property
    def _interface(self) -> str:
        return "" if self.bind_address is None else self.bind_address
