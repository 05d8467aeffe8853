"""The search for the node that takes over: the looks at all that may, until one of them is linked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import attrs
import trio

from meshq.cluster.leaving._departure import Departure, Successor
from meshq.cluster.leaving._handover_links import HandoverLinks
from meshq.discovery import DiscoveryGroup
from meshq.errors import NotFoundError

#: Seconds before the next look, if nothing has changed.
PAUSE_S: Final = 0.05


@attrs.frozen(kw_only=True)
class DrainOrder:
    """The settings of a drain.

    ``targets``: the nodes that may take over, in this order.  ``discovery``: without targets only nodes that this group
    knows.  ``nearest``: without either a node of this process first, and then one of the first cluster connection
    only; else one of any cluster connection.
    ``cluster``: the one cluster connection that counts, before any node of this process; None: all count.
    ``group``: only nodes of this group.  ``linked_s``: seconds for which it waits for such a node; ``patience_s``: for
    one that does not answer any more.
    """

    targets: Sequence[str] = ()
    discovery: DiscoveryGroup | None = None
    nearest: bool = False
    cluster: str | None = None
    group: str | None = None
    dry_run: bool = False
    linked_s: float = 10.0
    patience_s: float = math.inf


class LeavingNode(Protocol):
    """The node that leaves, as its drain sees it."""

    @property
    def connectors(self) -> Mapping[str, str]:
        """The URLs of the broker's connectors, by name."""

    @property
    def own_url(self) -> str:
        """The URL by which others reach the node, which says how announced nodes are dialed; empty: there is none."""

    def clusters(self) -> Sequence[Departure]:
        """Return the departures of the cluster connections, in their order.

        Raises:
            NotActiveError: the node is not active.
            UsageError: it runs in another thread.
        """

    def near(self) -> Sequence[str]:
        """Return the URLs of the connectors that lead to other brokers of this process."""

    def links(self) -> HandoverLinks:
        """Return the node's links that hand over.  Raises: NotActiveError: the node is not active."""

    def links_made(self) -> HandoverLinks | None:
        """Return these if there are any; None: nothing was dialed."""


@attrs.frozen
class FoundTarget:
    """The node that takes over.  ``departure``: whose link leads there; ``told``: all that are told of it."""

    departure: Departure
    target: Successor
    told: Sequence[Departure]


class TargetSearch:
    """The search of one drain of a broker, by its name."""

    def __init__(self, name: str, node: LeavingNode, order: DrainOrder) -> None:
        self._name = name
        self._node = node
        self._order = order
        # Made when something is to be dialed; before that nothing but cluster connections counts.
        self._links: HandoverLinks | None = None

    async def find(self) -> FoundTarget:
        """Wait for a node that takes over, a little.

        Checkpoint: always.
        Cancellation: links that were dialed stay until ``release``.
        Raises:
            NotFoundError: there is none.
            SettingsError: a URL can't be dialed.
        """
        order, node = self._order, self._node
        clusters = node.clusters()
        if not (clusters or order.targets or order.discovery or (order.nearest and node.near())):
            raise NotFoundError(f"the broker {self._name!r} has no cluster connection: no node can take over")
        found = None
        with trio.move_on_after(order.linked_s):
            # Without any link there is none to wait for.
            while (found := self._look(last=False)) is None and self._all_departures():
                with trio.move_on_after(PAUSE_S):
                    await self._changed()
        await trio.lowlevel.checkpoint()
        found = found or self._look(last=True)
        if found is None:
            error = self._not_found()
            self.release()
            raise error
        departure, target = self._begun(*found)
        return FoundTarget(departure, target, self._all_departures())

    def release(self) -> None:
        """End the links that were dialed and are of no use."""
        if self._links is not None:
            self._links.release()

    async def _changed(self) -> None:
        await self._all_departures()[-1].changed.wait()

    def _all_departures(self) -> list[Departure]:
        """Return the departures of the cluster connections, and of the links that hand over if there are any."""
        links = self._links = self._links or self._node.links_made()
        return [*self._node.clusters(), *([links.departure] if links is not None else ())]

    def _begun(self, departure: Departure, target: Successor) -> tuple[Departure, Successor]:
        """Prefer another link to the same node where a transaction was begun, or else where messages wait."""
        ways = [(departure, target)]
        for each in self._all_departures():
            ways += [(each, one) for one in each.successors() if one.node_id == target.node_id and one.ready]
        for way in ways:
            if way[0].broker.transfer.has_begun(way[1].link):
                return way
        return next((way for way in ways if way[1].link.waiting), ways[0])

    # -- a look

    def _look(self, *, last: bool) -> tuple[Departure, Successor] | None:
        """Return the node that takes over.  ``last``: there is no time for another look."""
        order, clusters = self._order, self._clusters()
        if order.targets:
            return self._first_of(order.targets, clusters, last=last)
        if order.discovery is not None:
            return self._announced(order.discovery, clusters)
        if order.nearest and order.cluster is None:
            linked = [one.url for each in clusters for one in each.successors() if one.url.startswith("inproc:")]
            near = dict.fromkeys([*self._node.near(), *linked])
            found = self._first_of(tuple(near), clusters, last=last)
            if found is not None or (not last and any(map(self._may_come, near))):
                return found
        return self._ready(clusters[:1] if order.nearest else clusters, self._all)

    def _clusters(self) -> list[Departure]:
        return [one for one in self._node.clusters() if self._order.cluster in (None, one.topology.cluster)]

    def _first_of(
        self, targets: Sequence[str], clusters: Sequence[Departure], *, last: bool
    ) -> tuple[Departure, Successor] | None:
        """Return the first of some nodes that is linked; none before the attempt to reach an earlier one has ended."""
        for wanted in targets:
            url = self._node.connectors.get(wanted, wanted)
            for departure in clusters:
                for one in departure.successors():
                    if (url == one.url or wanted in (one.name, one.node_id.hex())) and self._takes(one):
                        return departure, one
            if "://" not in url or any(url == one.url for each in clusters for one in each.successors()):
                continue
            links = self._dialing()
            links.dial(url, "connectors" if url != wanted else "target")
            reached = links.at(url)
            if reached is not None and self._takes(reached):
                return links.departure, reached
            if not last and self._may_come(url):
                return None
        return None

    def _announced(self, group: DiscoveryGroup, clusters: Sequence[Departure]) -> tuple[Departure, Successor] | None:
        """Return a linked node among the announced ones, and dial the others."""
        ids = {node.node_id for node in group.known}

        def named(one: Successor) -> bool:
            return one.node_id in ids

        found = self._ready(clusters, named)
        if found is not None:
            return found
        links = self._dialing()
        links.dial_announced(group, self._node.own_url)
        return self._ready([links.departure], named)

    def _may_come(self, url: str) -> bool:
        """Whether a node that was dialed may be linked at once, or may say of which group it is."""
        links = self._links
        if links is None:
            return False
        reached = links.at(url)
        silent = reached is not None and reached.ready and self._order.group is not None and not links.spoken(url)
        return links.undecided(url) or silent

    def _ready(self, departures: Iterable[Departure], named: _Named) -> tuple[Departure, Successor] | None:
        for departure in departures:
            for one in departure.successors():
                if named(one) and self._takes(one):
                    return departure, one
        return None

    def _all(self, one: Successor) -> bool:
        return True

    def _takes(self, one: Successor) -> bool:
        return one.ready and self._order.group in (None, one.group)

    def _dialing(self) -> HandoverLinks:
        if self._links is None:
            self._links = self._node.links()
        return self._links

    def _not_found(self) -> NotFoundError:
        links, order = self._links, self._order
        known = [
            f"{one.label} ({'leaving' if one.leaving else one.state})"
            for each in self._all_departures()
            for one in each.successors()
        ]
        known += links.troubles() if links is not None else ()
        if order.targets:
            what = f"no node {' or '.join(map(repr, order.targets))}"
        elif order.discovery is not None:
            what = f"no node of the discovery group {order.discovery.name!r}"
        else:
            what = "no other node"
        what += f" of the group {order.group!r}" if order.group is not None else ""
        text = f"{what} is linked that takes over from {self._name!r}; known: {', '.join(known) or 'none'}"
        return NotFoundError(text)


class _Named(Protocol):
    """A test of whether a node is wanted."""

    def __call__(self, one: Successor) -> bool:
        """Whether it is."""
