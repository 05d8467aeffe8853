"""Links that a node makes to hand over to nodes that none of its cluster connections links.

Such a link is that of a cluster connection which deals nothing: its store-and-forward queue has a name of its own that
is the same in every life, so a drain that is cut goes on with what is under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from meshq.abc import Env, LocalBroker
from meshq.address import HANDOVER
from meshq.cluster._dial_plan import AnnouncedNode, DialRules
from meshq.cluster._link_keeper import LinkKeeper
from meshq.cluster._peer import Peer
from meshq.cluster._settings import ClusterSettings, NodeLogin
from meshq.cluster.leaving._departure import Departure, Successor
from meshq.cluster.leaving._handover_topology import HandoverTopology
from meshq.concurrency import ChangeSignal
from meshq.discovery import DiscoveryGroup
from meshq.errors import SettingsError
from meshq.logs import Warnings
from meshq.statistics import BridgeStatistics

#: What such links have of their own, whatever the cluster connection says whose settings they share.
_OWN: Final[dict[str, Any]] = {
    "name": HANDOVER,
    "load_balancing": "off",
    "static_connectors": (),
    "discovery": None,
    "allow_direct_connections_only": True,
    "address": "",
    "max_hops": 1,
    "initial_connect_attempts": math.inf,
    "reconnect_attempts": math.inf,
    "notification_attempts": 1,
    "stuck_timeout": math.inf,
}


def link_settings(shared: ClusterSettings | None) -> ClusterSettings:
    """Return the settings of links that hand over.  ``shared``: those of the cluster connection; None: the defaults."""
    return ClusterSettings(**_OWN) if shared is None else attrs.evolve(shared, **_OWN)


class _Unheard:
    """A sink that drops notifications: links that hand over come and go with drains, and no node with them."""

    def emit(self, kind: type[Any], **about: Any) -> None:
        """Do nothing."""


class HandoverLinks:
    """The links of one life of a node to nodes that it may hand over to, or has begun to.

    ``shared``: the settings of the cluster connection whose user and password ``login`` has.  ``clusters``: the
    departures of the cluster connections that are served now.
    """

    def __init__(
        self,
        broker: LocalBroker,
        login: NodeLogin,
        shared: ClusterSettings | None,
        clusters: Callable[[], Sequence[Departure]],
    ) -> None:
        self._broker = attrs.evolve(broker, notifications=_Unheard())
        self._login = login
        self._settings = link_settings(shared)
        self._check = partial(check_reach, broker.control.env, login, shared)
        self._warnings = Warnings("cluster", trio.current_time)
        self._changed = ChangeSignal()
        self._claims: dict[bytes, Peer] = {}
        # By URL.
        self._keepers: dict[str, LinkKeeper] = {}
        # The connectors that an earlier life has left; these are kept.
        self._former: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._topology = HandoverTopology(broker.control, clusters, self._say)
        #: The part of these links in the departure of the node.
        self.departure: Departure = Departure(
            broker, self._topology, lambda: self._peers, self._changed, self._warnings.say
        )

    def __repr__(self) -> str:
        return f"<HandoverLinks {list(self._keepers)}>"

    @property
    def _peers(self) -> list[Peer]:
        return [keeper.peer for keeper in self._keepers.values()]

    def bridges(self) -> list[BridgeStatistics]:
        """Return the links as the bridges that they are."""
        return [peer.statistics() for peer in self._peers if peer.state != "spare"]

    # -- life

    def take_up(self) -> None:
        """Restore the links of an earlier life that something waits for; the others are forgotten."""
        broker, settings = self._broker, self._settings
        prepared = broker.transfer.inventory().prepared
        for former in broker.peers.former(settings.prefix):
            link = broker.peers.forwarding(former.name)
            if not link.waiting and not prepared:
                broker.routes.mark(link, "left")
            broker.routes.take_up(link, settings.load_balancing)
            if former.connector and (link.waiting or prepared) and self._still_reached(former.connector):
                keeper = self._keepers[former.connector] = self._keeper(former.connector)
                self._former.add(former.connector)
                keeper.peer.was(former)

    def _still_reached(self, url: str) -> bool:
        """Whether a URL of an earlier life may be dialed in this life; a warning says if not."""
        try:
            self._check(url, "connectors")
        except SettingsError as error:
            text = f"what an earlier life has handed over to a node stays until that is dialed again: {error}"
            self._warnings.say("handover_not_dialed", text, url)
            return False
        return True

    async def run(self) -> None:
        """Keep the links, until cancelled.

        Checkpoint: always.
        Cancellation: the links are closed; what waits for other nodes stays in its queues.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for keeper in self._keepers.values():
                    nursery.start_soon(keeper.run, self._broker.control)
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self.departure.ended.set()
            for keeper in self._keepers.values():
                keeper.peer.end()
            self._changed.tell()

    # -- dialing

    def dial(self, url: str, setting: str) -> None:
        """Link to the node at a URL, the value of a setting.  Twice is silent.

        Raises:
            SettingsError: nobody can dial it; or it is beyond this machine, and everybody knows the password.
        """
        if url not in self._keepers:
            self._check(url, setting)
            self._begin(url)

    def _begin(self, url: str) -> None:
        keeper = self._keepers[url] = self._keeper(url)
        if self._nursery is not None:
            self._nursery.start_soon(keeper.run, self._broker.control)
        self._changed.tell()

    def dial_announced(self, group: DiscoveryGroup, own: str) -> None:
        """Link to the nodes that announce themselves, in the way in which this node's ``own`` URL is dialed."""
        nodes = [AnnouncedNode(node.node_id, node.name, node.places) for node in group.known]
        plan = DialRules(own, loopback_only=self._login.default).plan(nodes, ())
        for refused in plan.refused:
            self._warnings.say("announced_node_not_dialed", refused.text, refused.node_id.hex())
        for url in plan.begin:
            try:
                self.dial(url, "discovery")
            except SettingsError as error:
                self._warnings.say("announced_node_not_dialed", str(error), url)

    def release(self) -> None:
        """End the links to nodes that were no target, in this life or the one before, and that nothing waits for."""
        routes = self._broker.routes
        for url, keeper in list(self._keepers.items()):
            peer, link = keeper.peer, keeper.peer.forwarding
            if url in self._former or peer.node_id in self._topology.targets or (link is not None and link.waiting):
                continue
            del self._keepers[url]
            keeper.forget()
            self._topology.forget_word(url)
            if link is not None:
                # So that a later life forgets it.
                routes.withdraw(link)
                routes.mark(link, "left")

    def _keeper(self, url: str) -> LinkKeeper:
        warn = self._warnings.say
        peer = Peer(
            self._settings, self._broker, url, self._changed.tell, self._claims, topology=self._topology, warn=warn
        )
        return LinkKeeper(
            url,
            peer,
            static=False,
            settings=self._settings,
            factory=partial(self._factory, url),
            changed=self._changed,
            warn=warn,
        )

    def _factory(self, url: str, **changed: Any) -> Any:
        settings = {**self._settings.client(), **changed}
        return self._login.factory(url, "connectors", env=self._broker.control.env, **settings)

    def _say(self) -> None:
        """Send the description of this node, as it is now, over all links."""
        for peer in self._peers:
            peer.announce()

    # -- what became of it

    def at(self, url: str) -> Successor | None:
        """Return the node at a URL, however it is linked; None: none was reached there."""
        keeper = self._keepers.get(url)
        if keeper is None:
            return None
        node_id = keeper.peer.node_id
        return next((one for one in self.departure.successors() if node_id and one.node_id == node_id), None)

    def undecided(self, url: str) -> bool:
        """Whether no attempt to reach the node at a URL has come to its end yet."""
        keeper = self._keepers.get(url)
        return keeper is not None and keeper.peer.error is None and keeper.peer.state == "connecting"

    def spoken(self, url: str) -> bool:
        """Whether the node at a URL has said something of itself in its session."""
        keeper = self._keepers.get(url)
        return keeper is not None and keeper.peer.word is not None

    def troubles(self) -> list[str]:
        """Return the nodes that can't be reached, with the reasons."""
        return [
            f"{keeper.peer.label.partition('?')[0]} ({keeper.peer.error})"
            for keeper in self._keepers.values()
            if keeper.peer.state != "linked" and keeper.peer.error is not None
        ]


def check_reach(env: Env, login: NodeLogin, shared: ClusterSettings | None, url: str, setting: str) -> None:
    """Check a URL that a node would hand over to.  ``shared``: as for ``HandoverLinks``.

    Raises:
        SettingsError: nobody can dial it; or it is beyond this machine, and everybody knows the password.
    """
    factory = login.factory(url, setting, env=env, **link_settings(shared).client())
    if login.default and not all(endpoint.loopback for endpoint in factory.endpoints):
        allowed = "a URL of this machine, as long as no cluster connection has a password of its own"
        raise SettingsError(setting, url, allowed, shown=repr(url.partition("?")[0]))
