"""Where messages go that wait for a node which does not come back: to the other queues that could have had them.

A message that was for queues of certain names goes to other queues of these names.  On an anycast address, where one
queue gets it, any other queue there will do; on a multicast address the others have theirs already.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshq.address import TEMPORARY
from meshq.broker.catalog._distribution_plan import ClusteredQueue, Share, Wants, groups_of, nearest, plan, takers
from meshq.broker.catalog._known_peers import KnownPeers
from meshq.broker.catalog._router import Address, Router
from meshq.broker.ingress._distribution import PartGroups, wants_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun


class Rerouting:
    """The places for messages that wait for a node, without that node and all that are gone."""

    def __init__(self, router: Router, peers: KnownPeers) -> None:
        self._router = router
        self._peers = peers

    def movable(self, forward: Queue, run: StoredRun, remote: Sequence[int], rows: Sequence[int]) -> list[int]:
        """The rows of a run, for these queues of the node, that have a place."""
        if run.address.startswith(TEMPORARY):
            # The queue was a session's at that node, and nobody else has it.
            return []
        address = self._router.addresses.get(run.address)
        if address is None:
            routings = {kept["routing"] for kept in self._kept(forward, remote).values()}
            if run.options is not None and run.options.there is not None:
                routings.add(run.options.there.routing)
            return [] if "multicast" in routings or self._is_taken(run.address) else list(rows)
        clustered_queues = self._clustered_queues(address, forward)
        if address.routing == "anycast" and not clustered_queues:
            # One is made.
            return [] if self._is_taken(run.address) else list(rows)
        first, others = self._choice(address, self._names(forward, run, remote), clustered_queues)
        wants = wants_of(run)
        return [row for row in rows if _taken(wants, row, first, address) or _taken(wants, row, others, address)]

    def _is_taken(self, name: str) -> bool:
        """Whether another address has a queue of this name, so that none can be made."""
        return name in self._router.queues

    def offers(self, address: Address, forward: Queue) -> bool:
        """Whether an address has any other queue."""
        return bool(self._clustered_queues(address, forward))

    def shares(
        self,
        forward: Queue,
        run: StoredRun,
        remote: Sequence[int],
        address: Address,
        part_groups: PartGroups | None = None,
    ) -> list[Share]:
        """Return the shares of a run; every row has a queue that takes it."""
        clustered_queues = self._clustered_queues(address, forward)
        first, others = self._choice(address, self._names(forward, run, remote), clustered_queues)
        anycast = address.routing == "anycast"
        rows, wants = range(run.content.rows), wants_of(run)
        here = [row for row in rows if _taken(wants, row, first, address)]
        there = sorted({*rows} - {*here})
        shares = []
        for part, some in ((here, first), (there, others)):
            if part and some:
                plain, grouped = part_groups(address.name, some, part) if part_groups else (part, [])
                shares += grouped
                shares += plan(some, plain, anycast=anycast, next_index=address.next_index, wants=wants)
        address.next_index += len(rows)
        for name, clustered in clustered_queues.items():
            if name in address.clustered_queues:
                address.clustered_queues[name].next_index = clustered.next_index
        return shares

    def _choice(
        self, address: Address, names: Sequence[str], clustered_queues: dict[str, ClusteredQueue]
    ) -> tuple[list[ClusteredQueue], list[ClusteredQueue]]:
        """The preferred queue names, and the names that are the second choice."""
        known = [clustered_queues[name] for name in names if name in clustered_queues]
        if address.routing == "anycast":
            return known, list(clustered_queues.values())
        # Each of them is owed one.
        return (known, []) if known and len(known) == len(names) else ([], [])

    def _clustered_queues(self, address: Address, forward: Queue) -> dict[str, ClusteredQueue]:
        """The queues of an address here, and on nodes that are there."""
        clustered_queues: dict[str, ClusteredQueue] = {}
        for queue in address.queues:
            _clustered_queue(clustered_queues, address, queue.name).local = queue
        node = node_of(forward)
        others = [
            binding
            for binding in self._router.bindings(address.name)
            if binding.routing == address.routing and binding.mode != "off" and not binding.gone
            # Nor what is behind that node, or its own queues by another way.
            if node_of(binding.forward) != node and node not in binding.path
        ]
        for binding in nearest(others):
            _clustered_queue(clustered_queues, address, binding.name).remotes.append(binding)
        return clustered_queues

    def _names(self, forward: Queue, run: StoredRun, remote: Sequence[int]) -> list[str]:
        """The names of a node's queues that a run is for; empty for a queue that is no longer known."""
        if run.options is not None and run.options.there is not None:
            return [run.options.there.name]
        told = {binding.number: binding.name for binding in self._router.remote(forward.number.to_bytes(8, "big"))}
        kept = self._kept(forward, remote)
        return [told.get(number) or kept.get(number, {}).get("name", "") for number in remote]

    def _kept(self, forward: Queue, remote: Sequence[int]) -> dict[int, dict[str, str]]:
        known = self._peers.peers.get(forward.number)
        if known is None:
            return {}
        return {number: dict(known.queues[number].kept) for number in remote if number in known.queues}


def node_of(forward: Queue) -> str:
    """The id of the node for which a store-and-forward queue is."""
    return forward.name.rpartition(".")[2]


def _taken(wants: Wants, row: int, clustered_queues: Sequence[ClusteredQueue], address: Address) -> bool:
    """Whether a message has a place in each of the groups of some names."""
    groups = groups_of(clustered_queues, anycast=address.routing == "anycast") if clustered_queues else []
    found = [any(taker.gets for taker in takers(group, lambda filters: wants(filters, row))) for group in groups]
    return bool(found) and all(found)


def _clustered_queue(clustered_queues: dict[str, ClusteredQueue], address: Address, name: str) -> ClusteredQueue:
    clustered = clustered_queues.get(name)
    if clustered is None:
        clustered = clustered_queues[name] = ClusteredQueue(name)
        clustered.next_index = address.clustered_queues[name].next_index if name in address.clustered_queues else 0
    return clustered
