"""Targets of a client's links: brokers in this process, and brokers over TCP or TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from meshq.abc import Env, TargetPolicy, TopologySource
from meshq.client.link._discovered_targets import DiscoveredTopology, Turns
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, SettingsError
from meshq.wire import Link, StreamLink


class ConnectTarget(Protocol):
    """Something that a client can connect to."""

    async def open(self) -> Link:
        """Connect.

        Raises:
            ConnectionBrokenError, NotActiveError: not now; it may be tried again.
        """

    def __str__(self) -> str: ...


@attrs.frozen(kw_only=True)
class ClientTargets:
    """The nodes that a client may connect to now, the order in which they are tried, and how each is dialed."""

    topology: TopologySource
    policy: TargetPolicy
    connector: Callable[[Endpoint], ConnectTarget]
    #: Where brokers are discovered; None: the list is given.
    discovered: DiscoveredTopology | None = None
    #: The policies of single clients; None: all have the same one.
    turns: Turns | None = None

    def of_one(self) -> ClientTargets:
        """Return the targets of one client."""
        return self if self.turns is None else attrs.evolve(self, policy=self.turns.next())

    def why_none(self) -> str:
        """Why no target is known, for errors."""
        return "no node is known to connect to" if self.discovered is None else self.discovered.why_none()


class LocalTarget:
    """A broker in this process, with a function that opens a link."""

    def __init__(self, open_link: Callable[[], Link], name: str) -> None:
        self._open = open_link
        self._name = name

    async def open(self) -> Link:
        """Connect.

        Checkpoint: never; whoever connects passes through the scheduler.  Cancellation: it has no moment for it.
        """
        return self._open()

    def __str__(self) -> str:
        return self._name


class InprocTarget:
    """A broker in this process, looked up by name at each attempt."""

    def __init__(self, endpoint: Endpoint, env: Env, label: str) -> None:
        self._endpoint = endpoint
        self._env = env
        self._label = label

    async def open(self) -> Link:
        """Connect.

        Checkpoint: never; whoever connects passes through the scheduler.  Cancellation: it has no moment for it.
        Raises:
            ConnectionBrokenError, NotActiveError: there is no such broker now.
        """
        there = self._env.local.get(self._endpoint.host)
        if there is None:
            raise ConnectionBrokenError(
                f"no broker of this process is named {self._endpoint.host!r}", outcome="not_done"
            ) from LookupError(f"{self._endpoint.host!r} is not among the brokers of this process")
        link: Link = there.connect_local(self._label)
        return link

    def __str__(self) -> str:
        return str(self._endpoint)


class TcpTarget:
    """A broker at a host and port."""

    def __init__(self, endpoint: Endpoint, env: Env, *, insecure: bool) -> None:
        if not endpoint.loopback and not insecure:
            raise SettingsError(
                "url", str(endpoint), "plaintext to this machine only, unless insecure=True; tls:// to others"
            )
        self._endpoint = endpoint
        self._env = env

    async def open(self) -> Link:
        """Connect.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            ConnectionBrokenError: it can't be reached now.
        """
        stream = await self._env.network.connect(self._endpoint.host, self._endpoint.port)
        return StreamLink(stream, local=self._endpoint.loopback)

    def __str__(self) -> str:
        return str(self._endpoint)


class TlsTarget:
    """A broker at a host and port, over TLS: the host is the name that its certificate must have."""

    def __init__(self, endpoint: Endpoint, env: Env, tls: object) -> None:
        self._endpoint = endpoint
        self._env = env
        self._tls = tls

    async def open(self) -> Link:
        """Connect, and see the broker's certificate.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            ConnectionBrokenError: it can't be reached now.
            SecurityError: one side does not believe the other.
            SettingsError: a file of ``tls`` can't be used.
        """
        # Read each time: a certificate that was renewed is taken without a restart.
        side = self._env.tls.client(self._tls)
        stream = await self._env.network.connect(self._endpoint.host, self._endpoint.port)
        return StreamLink(await side.wrap(stream, self._endpoint.host), local=False)

    def __str__(self) -> str:
        return str(self._endpoint)
