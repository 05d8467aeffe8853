"""The endpoint of a group that is found by DNS-SD over multicast DNS, also known as Bonjour or zeroconf."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import attrs
import trio

from meshq.abc import BroadcastChannel, BroadcastEndpoint, BroadcastSender, DatagramSocket, Env
from meshq.discovery._dns_sd_format import (
    GROUP_CHARACTERS_MAX,
    MDNS_GROUP,
    MDNS_PORT,
    check_installed,
    decode_message,
    encode_messages,
)
from meshq.discovery._socket_channel import check_datagram
from meshq.discovery._udp_multicast import check_interface
from meshq.errors import BrokenError, SettingsError
from meshq.loops import check_in_trio

MEMBER_BYTES: Final = 16


def _group(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if type(value) is not str or not (value.isascii() and value.isalnum()) or len(value) > GROUP_CHARACTERS_MAX:
        raise SettingsError(attribute.name, value, f"a name of 1 to {GROUP_CHARACTERS_MAX} letters and digits")


@attrs.frozen
class Zeroconf(BroadcastEndpoint):
    """A group that is found by DNS-SD: each member is an instance of the service ``_meshq._tcp``.

    ``group`` is a name of letters and digits, the same for all who shall meet.  ``bind_address``: the IPv4 address of
    the interface by which messages leave and arrive; None: the system chooses.  Messages don't leave the local network,
    and with a loopback ``bind_address`` not the host.  Needs the extra ``zeroconf``.

    Raises:
        SettingsError: a setting isn't allowed.
        UsageError: the package zeroconf is not installed.
    """

    group: str = attrs.field(validator=_group)
    bind_address: str | None = attrs.field(default=None, kw_only=True, validator=check_interface)

    def __attrs_post_init__(self) -> None:
        check_installed()

    async def open(self, env: Env) -> BroadcastChannel:
        """Join the group of multicast DNS.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the port or the interface can't be used, or the group can't be joined.
        """
        check_in_trio("Broker")
        sender = await self._sender(env)
        try:
            receiving = await env.datagrams.join(MDNS_GROUP, MDNS_PORT, self._interface)
        except OSError as error:
            sender.close()
            raise BrokenError(f"multicast DNS can't be heard: {error.strerror or error}") from error
        except BaseException:
            sender.close()
            raise
        return ZeroconfChannel(sender, receiving, self.group)

    async def open_sender(self, env: Env) -> BroadcastSender:
        """Open a socket from which is sent to the group.

        Checkpoint: always.
        Cancellation: nothing is open.
        Raises:
            BrokenError: the port or the interface can't be used.
        """
        check_in_trio("Broker")
        return await self._sender(env)

    async def _sender(self, env: Env) -> ZeroconfSender:
        try:
            # Answers of multicast DNS come from its own port, or don't count.
            opened = await env.datagrams.bind(self._interface, MDNS_PORT, shared=True)
        except OSError as error:
            place = f"port {MDNS_PORT} of {self.bind_address or 'any address'}"
            raise BrokenError(f"{place} can't be bound: {error.strerror or error}") from error
        return ZeroconfSender(opened, self.group, env.entropy.token(MEMBER_BYTES).hex())

    @property
    def _interface(self) -> str:
        return "" if self.bind_address is None else self.bind_address


class ZeroconfSender(BroadcastSender):
    """A sender whose datagrams are records of an instance of the service; ``member`` is its name."""

    def __init__(self, opened: DatagramSocket, group: str, member: str) -> None:
        self._socket = opened
        self._group = group
        self._member = member

    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram to all who listen."""
        check_datagram(datagram)
        await trio.lowlevel.checkpoint()
        for message in encode_messages(self._group, self._member, datagram):
            try:
                await self._socket.send(message, MDNS_GROUP, MDNS_PORT)
            except OSError as error:
                raise BrokenError(f"nothing can be sent by multicast DNS: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the socket.  Who has heard of the instance forgets it after two minutes."""
        self._socket.close()


class ZeroconfChannel(BroadcastChannel):
    """A channel of a ``Zeroconf`` endpoint; ``close`` closes both sockets."""

    def __init__(self, sender: ZeroconfSender, receiving: DatagramSocket, group: str) -> None:
        self._sender = sender
        self._receiving = receiving
        self._group = group
        #: Datagrams of one message that were not received yet.
        self._waiting: deque[bytes] = deque()
        self._closed = False

    async def broadcast(self, datagram: bytes) -> None:
        """Send a datagram."""
        await self._sender.broadcast(datagram)

    async def receive(self) -> bytes:
        """Receive the next datagram of the group."""
        if self._waiting and not self._closed:
            await trio.lowlevel.checkpoint()
        while self._closed or not self._waiting:
            try:
                message = await self._receiving.receive()
            except OSError as error:
                raise BrokenError(f"nothing can be received by multicast DNS: {error.strerror or error}") from error
            self._waiting.extend(decode_message(message, self._group))
        return self._waiting.popleft()

    def close(self) -> None:
        """Close both sockets."""
        self._closed = True
        self._sender.close()
        self._receiving.close()
