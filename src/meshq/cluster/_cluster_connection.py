"""A cluster connection: links to other nodes, and over them the messages that are for their queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import attrs
import trio

from meshq.abc import Env, LocalBroker, NodeControl, Service
from meshq.address import HANDOVER
from meshq.client import ClientFactory, ClusterQueue, TopologyNode, shown_url, topology_of
from meshq.cluster._dial_plan import LOOK_PAUSE_S, AnnouncedNode, DialedConnector, DialRules
from meshq.cluster._link_keeper import LinkKeeper
from meshq.cluster._overlaps import overlap
from meshq.cluster._peer import Peer
from meshq.cluster._peer_statistics import PeerStatistics
from meshq.cluster._peer_view import peer_statistics
from meshq.cluster._questions import Questions
from meshq.cluster._redistributor import Redistributor
from meshq.cluster._remote_queue import RemoteQueue, nearest
from meshq.cluster._settings import (
    DEFAULT_PASSWORD,
    DEFAULT_USER,
    ClusterOptions,
    ClusterSettings,
    NodeLogin,
    load_balancing_of,
    url_of,
    wrong_connectors,
)
from meshq.cluster._succession import Successions
from meshq.cluster._topology import ClusterTopology
from meshq.cluster._wait_conditions import FoundInCluster, WaitCondition, check_address, check_wanted
from meshq.cluster.grouping import Grouping
from meshq.cluster.leaving import Departure
from meshq.concurrency import ChangeSignal, Wakeup
from meshq.discovery import DiscoveryGroup
from meshq.endpoint import Endpoint
from meshq.errors import CallTimeoutError, NotActiveError, SettingsError
from meshq.logs import Warnings
from meshq.loops import check_in_trio
from meshq.settings import TLS, Secret, SSLContext, takes_settings
from meshq.statistics import BridgeStatistics, StuckMessages


class ClusterConnection(Service):
    """A cluster connection, one of a broker's ``services``: joins the broker to others, so that each message goes to a
    queue of its name on one of the nodes.

    ``connector`` names this node's own address among the broker's ``connectors``; None: the URL of the broker's first
    acceptor, with the port that it really has.
    ``static_connectors`` are the other nodes: names from there, or URLs.  ``discovery``: a discovery group, which the
    broker then has, too; the nodes that it hears of are other nodes as well.  These are dialed with the scheme and the
    options of ``connector``.  ``load_balancing``: ``"on_demand"`` sends a
    message only where somebody wants it, ``"strict"`` to every node that has the queue, in turn, ``"off"`` to none,
    ``"off_with_redistribution"`` only what no queue here is for.
    ``forward_when_no_consumers`` is its older name: True is ``"strict"``, False ``"on_demand"``.
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
        connector: str | None = None,
        discovery: DiscoveryGroup | None = None,
        static_connectors: Sequence[str] = (),
        user: str = DEFAULT_USER,
        password: str | Secret = DEFAULT_PASSWORD,
        tls: TLS | SSLContext | None = None,
        forward_when_no_consumers: bool | None = None,
        **settings: Unpack[ClusterOptions],
    ) -> None:
        known = [field.name for field in attrs.fields(ClusterSettings)]
        for key in settings:
            if key not in known:
                raise SettingsError(key, "***", f"one of {', '.join(known)}, user, password, tls")
        if name == HANDOVER:
            raise SettingsError("name", name, "another name: this one is that of links which hand over")
        if forward_when_no_consumers is not None:
            settings["load_balancing"] = load_balancing_of(forward_when_no_consumers, settings)
        self.settings: ClusterSettings = ClusterSettings(
            name=name,
            connector=connector,
            discovery=discovery,
            static_connectors=static_connectors,
            **settings,
        )
        self.name = name
        #: The user and password of the nodes, and whom to believe.
        self.login: NodeLogin = NodeLogin(user, password, tls)
        self._urls: list[str] = []
        # By URL; the static connectors first, in their order.
        self._keepers: dict[str, LinkKeeper] = {}
        # Which of the peers reads the queue for a node: two that read it would make gaps in its numbers.
        self._claims: dict[bytes, Peer] = {}
        self._broker: LocalBroker | None = None
        self._topology: ClusterTopology | None = None
        # What is asked of them; made with the topology.
        self._questions: Questions
        self._grouping: Grouping
        # Told when a peer or a queue has changed; and the wakeup of the task that compares peers with announcements.
        self._changed = ChangeSignal()
        self._look = Wakeup()
        self._successions = Successions(self.settings.prefix, lambda: self._peers)
        self._warnings = Warnings("cluster", trio.current_time)
        #: What a drain of the node needs; None while it is not served.
        self.departure: Departure | None = None

    def __repr__(self) -> str:
        return f"<ClusterConnection {self.name!r} {self.settings.load_balancing} peers={len(self._keepers)}>"

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
    def needs(self) -> Sequence[Service]:
        """The discovery group."""
        return () if self.settings.discovery is None else (self.settings.discovery,)

    @property
    def credentials(self) -> dict[str, Secret]:
        """The name and password with which other nodes log in, the same as this node's."""
        return self.login.credentials

    def check_exposure(self, *, loopback: bool) -> None:
        """Check the password against the acceptors of the broker.

        Raises:
            SettingsError: other machines could come in with the password that everybody knows.
        """
        if self.login.default and not loopback:
            raise SettingsError("password", "***", "another one than the default: the broker listens to other machines")

    def check_acceptors(self, urls: Sequence[str]) -> None:
        """Check that the first acceptor is an address of this node, unless ``connector`` names another one.

        Raises:
            SettingsError: it isn't, or there is none.
        """
        if self.settings.connector is not None:
            return
        if not urls:
            raise SettingsError("connector", None, "a connector of the broker, which has no acceptor")
        if Endpoint.parse(urls[0]).wildcard:
            shown = shown_url(urls[0]).partition("?")[0]
            raise SettingsError("connector", None, f"a connector of the broker: nobody can dial its acceptor {shown}")

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the connectors: unknown names, URLs that can't be dialed, or the default password beyond
        loopback."""

        def loopback(url: str, setting: str) -> bool:
            return all(endpoint.loopback for endpoint in self._factory(url, setting, env).endpoints)

        return wrong_connectors(self.settings, connectors, loopback, default=self.login.default)

    def announce(self, control: NodeControl) -> None:
        """Find the connectors that are named.

        Raises:
            SettingsError: one of them isn't among the broker's, or can't be dialed; or everybody knows the password.
        """
        connectors = control.connectors
        for error in self.wrong_connectors(connectors, control.env):
            raise error
        named = self.settings.static_connectors
        own = self.settings.own_url(control)
        self._urls = [url for url in map(partial(url_of, connectors), named) if url != own]
        if self.login.default:
            text = f"the cluster connection {self.name} uses the default user and password, which everybody knows"
            self._warnings.say("default_cluster_password", f"{text}: change them")

    def take_up(self, broker: LocalBroker) -> None:
        """Restore the bindings of other nodes as known before the restart; they apply until each node is linked."""
        self._claims = {}
        self._topology = ClusterTopology(self.settings, broker, changed=self._look.wake, warn=self._warnings.say)
        self._questions = Questions(self.settings, lambda: self._peers, self._topology, warn=self._warnings.say)
        self._grouping = Grouping(self.settings, broker, self._topology, lambda: self._peers, self._warnings.say)
        self._questions.grouping = self._grouping
        self._keepers = {url: self._keeper(url, broker, static=True) for url in self._urls}
        rules = self._rules(broker.control) if self._finds else None
        for former in broker.peers.former(self.settings.prefix):
            url = former.connector
            if not url or not self.settings.leads(former.name):
                # Another cluster's, or another node answers at the URL, so the place of this node is unknown.
                continue
            link = broker.peers.forwarding(former.name)
            broker.routes.take_up(link, self.settings.load_balancing)
            # What still comes for a node that has handed over is for its peer to route anew, unless it was forgotten.
            wanted = not former.left or (former.over and bool(broker.peers.former(former.name)))
            if url not in self._keepers and rules is not None and wanted and rules.fits(url):
                # It was announced or learned of before the restart, and may be there although nobody says so.
                self._keepers[url] = self._keeper(url, broker, static=False)
            if url in self._keepers:
                self._keepers[url].peer.was(former)
            else:
                # It is not linked to any more; what only it has waits, until it is reached in another way.
                broker.routes.mark(link, "left")
        self._grouping.take_up()

    async def serve(
        self, broker: LocalBroker, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the links, until cancelled.

        Checkpoint: always.
        Cancellation: the links are closed; what waits for other nodes stays in its queues.
        """
        check_in_trio("Broker")
        self._broker = broker
        broker.demand.watch(self._changed.tell)
        broker.demand.watch(self._grouping.note)
        broker.demand.watch_peers(self._met)
        broker.stranded.watch(self._successions.has_more)
        group, topology = self.settings.discovery, self._topology
        questions = self._questions
        assert topology is not None
        topology.listens(self.settings.own_url(broker.control))
        redistributor = Redistributor(broker.stranded, self.settings.takes, self._warnings.say)
        self.departure = departure = Departure(broker, topology, lambda: self._peers, self._changed, self._warnings.say)
        try:
            async with trio.open_nursery() as nursery:
                for keeper in self._keepers.values():
                    nursery.start_soon(keeper.run, broker.control)
                redistributor.begin(nursery)
                questions.begin(nursery, broker)
                self._grouping.begin(nursery)
                nursery.start_soon(self._successions.run)
                nursery.start_soon(topology.run, broker)
                if group is not None:
                    nursery.start_soon(self._hear, group)
                if self._finds:
                    nursery.start_soon(self._follow, topology, broker, nursery)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    # Whoever has its turn between the end of the tasks and the end of this block could begin no task.
                    redistributor.end()
                    questions.end(broker)
                    self._grouping.end()
        finally:
            departure.ended.set()
            self._broker = self.departure = None
            for keeper in self._keepers.values():
                keeper.peer.end()
            self._changed.tell()

    @property
    def _finds(self) -> bool:
        """Whether nodes are dialed that the settings lack."""
        if self.settings.discovery is not None:
            return True
        # An acceptor of this node is one that others can dial, whatever port it will have.
        found = self.settings.connector is None or (self._topology is not None and bool(self._topology.own.primary))
        return found and not self.settings.allow_direct_connections_only

    def _met(self, node_id: bytes, connector: str) -> None:
        """Handle a node that has linked to this node: the other node is alive, so connect to it at once."""
        for url, keeper in self._keepers.items():
            if not keeper.peer.connected and (node_id == keeper.peer.node_id or connector == url):
                keeper.peer.call()

    def _factory(self, url: str, setting: str, env: Env, **changed: Any) -> ClientFactory:
        """Make the client factory for a URL, which is part of a setting."""
        return self.login.factory(url, setting, env=env, **{**self.settings.client(), **changed})

    def _peer_changed(self) -> None:
        self._questions.note()
        self._grouping.note()
        self._changed.tell()
        self._look.wake()
        self._successions.look.wake()

    def _keeper(self, url: str, broker: LocalBroker, *, static: bool) -> LinkKeeper:
        """Make the keeper of the link to the node at a URL."""
        control, topology = broker.control, self._topology
        assert topology is not None
        setting = "static_connectors" if static else "discovery"
        warn = self._warnings.say
        return LinkKeeper(
            url,
            Peer(self.settings, broker, url, self._peer_changed, self._claims, topology=topology, warn=warn),
            static=static,
            settings=self.settings,
            factory=partial(self._factory, url, setting, control.env),
            changed=self._changed,
            warn=warn,
        )

    # -- nodes that are found

    def _rules(self, control: NodeControl) -> DialRules:
        static = [
            endpoint
            for keeper in self._keepers.values()
            if keeper.static
            for endpoint in self._factory(keeper.url, "static_connectors", control.env).endpoints
        ]
        return DialRules(self.settings.own_url(control), static, loopback_only=self.login.default)

    async def _hear(self, group: DiscoveryGroup) -> None:
        while True:
            await group.change()
            self._look.wake()

    def _dialable(self, topology: ClusterTopology) -> list[AnnouncedNode]:
        """Return the nodes that announce themselves, and the nodes of which the peers tell."""
        group = self.settings.discovery
        found = [
            AnnouncedNode(node.node_id, node.name, node.places) for node in (group.known if group is not None else ())
        ]
        linked = {node_id for node_id, peer in self._claims.items() if not peer.absent}
        return found + topology.places(linked, {url for node in found for url in node.connectors})

    async def _follow(self, topology: ClusterTopology, broker: LocalBroker, nursery: trio.Nursery) -> None:
        """Dial the found nodes, and forget connectors that are neither named any more nor needed."""
        rules = self._rules(broker.control)
        while True:
            self._look.clear()
            dialed = [DialedConnector(one.url, one.static, one.peer.needed) for one in self._keepers.values()]
            plan = rules.plan(self._dialable(topology), dialed)
            for url in plan.end:
                self._keepers.pop(url).forget()
            for url in plan.begin:
                self._begin(url, broker, nursery)
            for refused in plan.refused:
                self._warnings.say("announced_node_not_dialed", refused.text, refused.node_id.hex())
            if plan.begin or plan.end:
                self._changed.tell()
            await self._look.wait()
            await trio.sleep(LOOK_PAUSE_S * len(self._keepers))

    def _begin(self, url: str, broker: LocalBroker, nursery: trio.Nursery) -> None:
        keeper = self._keeper(url, broker, static=False)
        try:
            keeper.check()
        except SettingsError as error:
            self._warnings.say("announced_node_not_dialed", str(error), url)
            return
        self._keepers[url] = keeper
        nursery.start_soon(keeper.run, broker.control)

    # -- what it knows

    @property
    def _peers(self) -> list[Peer]:
        return [keeper.peer for keeper in self._keepers.values()]

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node."""
        return [peer_statistics(peer) for peer in self._peers]

    def bridges(self) -> list[BridgeStatistics]:
        """Return the links as the bridges that they are, without the second links to nodes, which carry nothing."""
        return [peer.statistics() for peer in self._peers if peer.state != "spare"]

    def topology(self) -> tuple[TopologyNode, ...]:
        """Return the nodes of the cluster that are known now, linked or not; the node itself first.

        Raises:
            NotActiveError: the broker isn't active.
        """
        if self._broker is None or self._topology is None:
            raise NotActiveError(f"the cluster connection {self.name!r} is not served")
        return topology_of(self._topology.nodes())

    def nodes(self) -> int:
        """The number of known nodes that are not left, away or down, including this node.

        Nodes behind others, within ``max_hops``, are known by their queues.
        """
        return self._questions.nodes() if self._topology is not None else 1

    def consumers(self, queue: str) -> int:
        """The number of consumers of a queue of this name, on this node and on the known nodes that are not left, away
        or down.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._count(queue, None)[1]

    def bindings(self, address: str | None = None) -> tuple[RemoteQueue, ...]:
        """Return the queues of the known nodes that are not left, away or down, by node and in the order of their
        making; ``address``: only those of an address.

        Raises:
            SettingsError: no address can be so.
        """
        if address is not None:
            check_address(address)
        return tuple(self._there(None, address))

    def _there(self, queue: str | None, address: str | None) -> list[RemoteQueue]:
        return nearest(one for peer in self._peers if peer.connected for one in peer.queues(queue, address))

    async def queue(self, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters; each is asked, for a few seconds at most.

        A node that does not answer is listed, too, with what it has described before and how long ago it was heard.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("ClusterConnection")
        return await self._questions.queue(self._served(), name)

    def stuck(self) -> tuple[StuckMessages, ...]:
        """Return the messages on this node that do not move although a consumer wants them, with the cause of each.

        Raises:
            NotActiveError: the broker isn't active.
        """
        self._served()
        return self._questions.found()

    def _served(self) -> LocalBroker:
        """Return the broker.  Raises: NotActiveError: it isn't active."""
        if self._broker is None:
            raise NotActiveError(f"the cluster connection {self.name!r} is not served")
        return self._broker

    def _count(self, queue: str | None, address: str | None) -> tuple[int, int]:
        """Count the queues of a name, or of an address, or both; and their consumers."""
        queues, consumers = self._served().demand.count(queue, address)
        there = self._there(queue, address)
        return queues + len(there), consumers + sum(one.consumers for one in there)

    async def wait_for(
        self,
        *,
        nodes: int = 1,
        queue: str | None = None,
        queues: int | None = None,
        consumers: int = 0,
        address: str | None = None,
        exactly: bool = False,
        timeout: float = math.inf,  # noqa: ASYNC109
    ) -> None:
        """Return when so many nodes are known, and so many queues of a name or an address on all of them, with so many
        consumers.

        ``exactly``: when there are not more of them, either; nodes may be more where queues or consumers are counted.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed, or can't be counted.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("ClusterConnection")
        wanted = WaitCondition(nodes, queue, queues, consumers, address, exactly)
        check_wanted(wanted, timeout)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            while not wanted.met(self._found(wanted)):
                await self._changed.wait()
        # Also a change in the very moment in which the time is up counts.
        found = self._found(wanted)
        if wanted.met(found):
            return
        text = f"{wanted.shown(found)} after {timeout} s"
        raise CallTimeoutError(text, outcome="not_done") from TimeoutError(f"waited {timeout:g} s for a change")

    def _found(self, wanted: WaitCondition) -> FoundInCluster:
        self._served()
        counted = self._count(wanted.queue, wanted.address) if wanted.counts_queues else (0, 0)
        return FoundInCluster(self.nodes(), *counted)
