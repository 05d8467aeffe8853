"""Targets of a client's links: brokers in this process, and brokers over TCP or TLS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from meshq.abc import Env, HandoverTarget, Stream, TargetPolicy, ToldNode, TopologySource
from meshq.client.link._balanced_order import BalancedOrder, NodeChoice
from meshq.client.link._discovered_targets import DiscoveredTopology
from meshq.client.link._node_book_machine import KnownTargets, NodeBook, bare
from meshq.client.settings._place_options import connection_timeout
from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, MeshqError, SettingsError
from meshq.logs import Warnings
from meshq.wire import Link, StreamLink


class ConnectTarget(Protocol):
    """A place that a client can connect to."""

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
    #: By which a client chooses among nodes; None: all have the order of ``policy``.
    choice: NodeChoice | None = None
    #: What is known of the cluster; None: what nodes tell has no effect.
    book: NodeBook | None = None
    warnings: Warnings = attrs.field(factory=lambda: Warnings("client", trio.current_time))

    def of_one(self) -> ClientTargets:
        """Return the targets of one client."""
        return self if self.choice is None else attrs.evolve(self, policy=BalancedOrder(self.choice))

    @property
    def uninformed(self) -> bool:
        """Whether the topology counts, and no node has described the cluster yet."""
        return self.book is not None and not self.book.informed

    def known(self, last: Endpoint | None, target: HandoverTarget | None = None) -> KnownTargets:
        """Return the targets of the round that begins; ``last``: where the client was connected last.

        ``target``: the node to which the client was sent from there.
        """
        # Copied: the source may change its list within the round.
        listed = tuple(self.topology.endpoints())
        known = KnownTargets(listed) if self.book is None else self.book.known(listed, last)
        if target is None:
            return known
        if self.book is not None:
            places = self.book.places_of(target, listed, last)
        else:
            places = tuple(one for one in listed if str(bare(one)) == target.place)
        return attrs.evolve(known, first=(*places, last) if last is not None else places)

    def attached(self, target: Endpoint, node_id: bytes) -> None:
        """Note which node has answered at a target."""
        if self.book is not None:
            self.book.attached(target, node_id)

    def failed(self, target: Endpoint | None) -> None:
        """Note that an attempt at a target has failed; None: there was none."""
        if self.book is not None and target is not None:
            self.book.failed(target)

    def refused(self, target: Endpoint | None, error: MeshqError) -> bool:
        """Note that a node can't be used at all; return whether that concerns only this node, of which others told.

        A node that the URL lists is meant by the program: what is wrong with it is wrong with the program.
        """
        if self.book is None or target is None or target in self.topology.endpoints():
            return False
        text = f"the node at {target} can't be used: {error}"
        self.warnings.say("told_node_refused", text, str(target))
        return True

    def told(self, nodes: Sequence[ToldNode]) -> None:
        """Note all that a node tells of its cluster."""
        for text in self.book.told(nodes) if self.book is not None else ():
            self.warnings.say("told_node_not_dialed", text, text, level=logging.INFO)

    def why_none(self) -> str:
        """Why no target is known, for errors."""
        refused = self.policy.why_none() if isinstance(self.policy, BalancedOrder) else ""
        if refused:
            return refused
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
        stream = await _reach(self._endpoint, self._env)
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
        stream = await _reach(self._endpoint, self._env)
        return StreamLink(await side.wrap(stream, self._endpoint.host), local=False)

    def __str__(self) -> str:
        return str(self._endpoint)


async def _reach(endpoint: Endpoint, env: Env) -> Stream:
    """Connect to a place within the time that its URL gives.

    Checkpoint: always.  Cancellation: nothing is left.
    Raises:
        ConnectionBrokenError: the place can't be reached now.
    """
    patience = connection_timeout(endpoint)
    with trio.move_on_after(patience):
        return await env.network.connect(endpoint.host, endpoint.port)
    late = ConnectionBrokenError(f"{endpoint} can't be reached: no connection in time", outcome="not_done")
    raise late from TimeoutError(f"waited {patience:g} s for a connection")
