"""A cluster connection: links to other nodes, and over them the messages that are for their queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import attrs
import trio

from meshq.abc import Env, LocalBroker, NodeControl, Service
from meshq.client import ClientFactory, PeerLink, factory_of, shown_url
from meshq.cluster._overlaps import overlap
from meshq.cluster._peer import Peer, RedundantLinkError
from meshq.cluster._settings import ClusterOptions, ClusterSettings
from meshq.cluster._wait_conditions import check_wanted
from meshq.errors import AddressFullError, CallTimeoutError, MeshqError, NotActiveError, SettingsError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.settings import TLS, Secret, SSLContext, check_tls, check_user, takes_settings

DEFAULT_USER = "ACTIVEMQ.CLUSTER.ADMIN.USER"
DEFAULT_PASSWORD = "CHANGE ME!!"


@attrs.frozen(kw_only=True)
class PeerStatistics:
    """The state and counters of another node in a cluster connection."""

    connector: str
    #: Empty before the first link.
    node_id: str
    node_name: str
    connected: bool
    #: ``connecting`` before the first snapshot of its queues, ``linked``, ``spare`` (the node is linked by another
    #: connector, and by this one when that fails), ``left`` (it said goodbye), ``away`` (nobody answers there) or
    #: ``down`` (all attempts are used up).
    state: str
    #: The last error of the link; None: no error so far.
    error: MeshqError | None
    #: Messages that this node holds for it, and how many of them were sent and are not confirmed.
    waiting: int
    unconfirmed: int


class ClusterConnection(Service):
    """A cluster connection, one of a broker's ``services``: joins the broker to others, so that each message goes to a
    queue of its name on one of the nodes.

    One of a broker's ``services``.  ``connector`` names this node's own address among the broker's ``connectors``;
    ``static_connectors`` are the other nodes: names from there, or URLs.  ``load_balancing``: ``"on_demand"`` sends a
    message only where somebody wants it, ``"strict"`` to every node that has the queue, in turn, ``"off"`` to none,
    ``"off_with_redistribution"`` only what no queue here is for.
    ``user`` and ``password`` are the same on all nodes; ``tls``: whom to believe on ``tls://`` links, and as whom to
    come.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "cluster_connection"

    @takes_settings(ClusterSettings)
    def __init__(
        self,
        name: str,
        *,
        connector: str,
        discovery: object = None,
        static_connectors: Sequence[str] = (),
        user: str = DEFAULT_USER,
        password: str | Secret = DEFAULT_PASSWORD,
        tls: TLS | SSLContext | None = None,
        **settings: Unpack[ClusterOptions],
    ) -> None:
        known = [field.name for field in attrs.fields(ClusterSettings)]
        for key in settings:
            if key not in known:
                raise SettingsError(key, "***", f"one of {', '.join(known)}, user, password, tls")
        self.settings: ClusterSettings = ClusterSettings(
            name=name,
            connector=connector,
            discovery=discovery,  # type: ignore[arg-type]
            static_connectors=static_connectors,
            **settings,
        )
        self.name = name
        self._user = check_user("user", user)
        self._password = Secret(password)
        check_tls("tls", tls)
        self._tls = tls
        self._urls: list[str] = []
        self._peers: list[Peer] = []
        self._broker: LocalBroker | None = None
        self._changed = trio.Event()
        self._warnings = Warnings("cluster", trio.current_time)

    def __repr__(self) -> str:
        return f"<ClusterConnection {self.name!r} {self.settings.load_balancing} peers={len(self._peers)}>"

    # -- the service

    def conflict(self, other: Service) -> tuple[str, str] | None:
        if not isinstance(other, ClusterConnection):
            return None
        shared = overlap(self.settings, other.settings)
        if shared is None:
            return None
        every = f"addresses that begin with {shared!r}" if shared else "addresses"
        both = f"the cluster connections {self.name} and {other.name}"
        return "cluster_addresses_overlap", f"{both} both share {every}: what is sent there may come twice"

    @property
    def _default(self) -> bool:
        return (self._user, self._password) == (DEFAULT_USER, Secret(DEFAULT_PASSWORD))

    @property
    def credentials(self) -> dict[str, Secret]:
        """The name and password with which other nodes log in, the same as this node's."""
        return {self._user: self._password}

    def check_exposure(self, *, loopback: bool) -> None:
        """Check the password against the acceptors of the broker.

        Raises:
            SettingsError: other machines could come in with the password that everybody knows.
        """
        if self._default and not loopback:
            raise SettingsError("password", "***", "another one than the default: the broker listens to other machines")

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the connectors: unknown names, URLs that can't be dialed, or the default password beyond
        loopback."""
        known = ", ".join(sorted(connectors)) or "none"
        found = []
        if self.settings.connector not in connectors:
            allowed = f"one of the broker's connectors: {known}"
            found.append(SettingsError("connector", self.settings.connector, allowed))
        for name in self.settings.static_connectors:
            if "://" not in name and name not in connectors:
                found.append(SettingsError("static_connectors", name, f"URLs, or connectors of the broker: {known}"))
        dialed = [name for name in self.settings.static_connectors if "://" in name or name in connectors]
        if self._default and self.settings.connector in connectors:
            dialed.insert(0, self.settings.connector)
        far: dict[str, None] = {}
        for name in dict.fromkeys(dialed):
            try:
                # Checked now: a link that can't be dialed must not be found out at the first message.
                if not all(endpoint.loopback for endpoint in self._factory(name, connectors, env).endpoints):
                    far[_url(connectors, name)] = None
            except SettingsError as error:
                found.append(error)
        if self._default and far:
            urls = ", ".join(map(shown_url, far))
            found.append(SettingsError("password", "***", f"another one than the default, with {urls}"))
        return found

    def announce(self, control: NodeControl) -> None:
        """Find the connectors that are named.

        Raises:
            SettingsError: one of them isn't among the broker's, or can't be dialed; or everybody knows the password.
        """
        connectors = control.connectors
        for error in self.wrong_connectors(connectors, control.env):
            raise error
        named = self.settings.static_connectors
        self._urls = [
            url for url in map(partial(_url, connectors), named) if url != connectors[self.settings.connector]
        ]
        if self._default:
            text = f"the cluster connection {self.name} uses the default user and password, which everybody knows"
            self._warnings.say("default_cluster_password", f"{text}: change them")

    def take_up(self, broker: LocalBroker) -> None:
        """Restore the bindings of other nodes as known before the restart; they apply until each node is linked."""
        claims: dict[bytes, Peer] = {}
        self._peers = [
            Peer(self.settings, broker, url, self._something_changed, claims, warn=self._warnings.say)
            for url in self._urls
        ]
        by_url = dict(zip(self._urls, self._peers, strict=True))
        for former in broker.peers.former(self.settings.prefix):
            if not former.connector:
                # Another node answers at the URL, so the place of this node is unknown.
                continue
            link = broker.peers.forwarding(former.name)
            broker.routes.take_up(link, self.settings.load_balancing)
            peer = by_url.get(former.connector)
            if peer is not None:
                peer.was(former)
            else:
                # It is not linked to any more; what only it has waits, until it is reached in another way.
                broker.routes.mark(link, "left")

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the links, until cancelled.

        Checkpoint: always.
        Cancellation: the links are closed; what waits for other nodes stays in its queues.
        """
        check_in_trio("Broker")
        self._broker = broker
        broker.demand.watch(self._something_changed)
        broker.demand.watch_peers(self._met)
        try:
            async with trio.open_nursery() as nursery:
                for url, peer in zip(self._urls, self._peers, strict=True):
                    nursery.start_soon(self._keep, url, peer)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._broker = None
            for peer in self._peers:
                peer.end()
            self._something_changed()

    async def _keep(self, url: str, peer: Peer) -> None:
        """One link; begun again whenever the other node has ended it for good."""
        broker = self._broker
        assert broker is not None
        control = broker.control
        settings = self.settings
        factory = self._factory(url, control.connectors, control.env)
        while True:
            peer.link = factory.link(peer, label=control.name, instance=control.instance)
            error = await self._run(peer.link)
            peer.end()
            if error is None:
                return
            if error.refusal == "same_node":
                # Our own connector by another name, and nothing is wrong; or somebody has led us back to ourselves, who
                # may be gone later.
                await trio.sleep(settings.check_period)
                continue
            if isinstance(error, RedundantLinkError):
                # Another node may be there one day.
                with trio.move_on_after(settings.check_period):
                    while peer.spare:
                        await self._changed.wait()
                continue
            if error.refusal is None and settings.gives_up:
                if peer.state != "down":
                    self._warnings.say("peer_down", f"{peer.label} is given up: {error}", url)
                peer.forget(error)
                # It may come back: one look now and then, and at once when it links to us.
                factory = self._factory(url, control.connectors, control.env, initial_connect_attempts=1)
                await peer.wait_for_call(settings.check_period)
                continue
            peer.parted("away", error)
            self._warnings.say("peer_lost", f"the link to {peer.label} ended: {error}", url)
            await peer.wait_for_call(settings.max_retry_interval)

    def _met(self, node_id: bytes, connector: str) -> None:
        """Handle a node that has linked to this node: the other node is alive, so connect to it at once."""
        for url, peer in zip(self._urls, self._peers, strict=True):
            if not peer.connected and (node_id == peer.node_id or connector == url):
                peer.call()

    def _factory(self, name: str, connectors: Mapping[str, str], env: Env, **changed: Any) -> ClientFactory:
        """Make the client factory for a URL or for a connector of the broker."""
        url = _url(connectors, name)
        # What says whom to believe is for links that go over TLS.
        tls = self._tls if url.startswith("tls://") else None
        settings = {**self.settings.client(), **changed}
        setting = "static_connectors" if url == name else f"connectors[{name!r}]"
        return factory_of(url, setting, env=env, user=self._user, password=self._password, tls=tls, **settings)

    async def _run(self, link: PeerLink) -> MeshqError | None:
        try:
            return await link.run()
        except RedundantLinkError as error:
            return error
        except AddressFullError as error:
            # There is no room for the definition of the store-and-forward queue; later there may be.
            error.refusal = "address_full"
            return error

    def _something_changed(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()

    # -- what it knows

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node."""
        return [
            PeerStatistics(
                connector=url,
                node_id=peer.node_id.hex(),
                node_name=peer.name,
                connected=peer.connected,
                state=peer.state,
                error=peer.error,
                waiting=peer.waiting,
                unconfirmed=peer.link.unconfirmed if peer.link is not None else 0,
            )
            for url, peer in zip(self._urls, self._peers, strict=False)
        ]

    def nodes(self) -> int:
        """The number of known nodes that are not left, away or down, including this node."""
        found = {peer.node_id for peer in self._peers if peer.connected}
        return len(found) + 1

    def consumers(self, queue: str) -> int:
        """The number of consumers of a queue of this name, on this node and on the known nodes that are not left, away
        or down.

        Raises:
            NotActiveError: the broker isn't active.
        """
        if self._broker is None:
            raise NotActiveError(f"the cluster connection {self.name!r} is not served")
        there = {peer.node_id: peer.consumers(queue) for peer in self._peers if peer.connected}
        return self._broker.demand.consumers(queue) + sum(there.values())

    async def wait_for(
        self,
        *,
        nodes: int = 1,
        queue: str | None = None,
        consumers: int = 0,
        timeout: float = math.inf,  # noqa: ASYNC109
    ) -> None:
        """Return when so many nodes are known, and so many consumers of a queue on all of them.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed, or can't be counted.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("ClusterConnection")
        check_wanted(nodes, queue, consumers, timeout)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            while not self._there(nodes, queue, consumers):
                await self._changed.wait()
        # Also a change in the very moment in which the time is up counts.
        if self._there(nodes, queue, consumers):
            return
        found = f", {self.consumers(queue)} of {consumers} consumers of {queue!r}" if queue is not None else ""
        text = f"{self.nodes()} of {nodes} nodes{found} after {timeout} s"
        raise CallTimeoutError(text, outcome="not_done") from TimeoutError(f"waited {timeout:g} s for a change")

    def _there(self, nodes: int, queue: str | None, consumers: int) -> bool:
        if self._broker is None:
            raise NotActiveError(f"the cluster connection {self.name!r} is not served")
        return self.nodes() >= nodes and (queue is None or self.consumers(queue) >= consumers)


def _url(connectors: Mapping[str, str], name: str) -> str:
    """Return the URL for a connector's name, or the URL itself."""
    return name if "://" in name else connectors[name]
