"""The places of messages with a group, where groups are pinned to nodes: each group goes one way.

What is for a pin that is known goes to its node.  All else waits here, where the group's other messages wait, too, or,
without a queue of the name here, at one node that has one (docs/design/clustered-groups.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

from meshq.broker.catalog._distribution_plan import ClusteredQueue, Member, RemoteBinding, Share, filters_of
from meshq.broker.catalog._pins_machine import PinsMachine
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._distribution import PartGroups, wants_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import PARKED
from meshq.broker.records._row_options import RowOptions
from meshq.broker.records._row_ranges import pieces
from meshq.selector import Filter


class GroupPlaces:
    """Finds the queue for each group of a run, and the node that a group without a pin is to have."""

    def __init__(self, router: Router, has_entries_for: Callable[[Queue], bool]) -> None:
        """``has_entries_for``: whether a run was placed in a queue and is not visible yet."""
        self._router = router
        self._pins: PinsMachine = router.pins
        self._has_entries_for = has_entries_for

    def parting(self, asked: Sequence[RowOptions] | None) -> PartGroups | None:
        """The function that divides a run with these options by its groups; None: it has none, or none is pinned."""
        return partial(self.part, asked=asked) if asked is not None and self._pins.active else None

    def part(
        self, address: str, clustered_queues: Sequence[ClusteredQueue], rows: Sequence[int], asked: Sequence[RowOptions]
    ) -> tuple[Sequence[int], list[Share]]:
        """Return the rows that are dealt as any others, and the shares of those with a group.

        On an address with queues of several names messages are dealt to these first, whatever their groups.
        """
        clustered = self._of_groups(address, clustered_queues)
        if clustered is None:
            return rows, []
        plain: list[int] = []
        groups: dict[str, list[int]] = {}
        for row in rows:
            group = asked[row].group
            if group is None:
                plain.append(row)
            else:
                groups.setdefault(group, []).append(row)
        if not groups:
            return rows, []
        taken: dict[tuple[Queue, int], list[int]] = {}
        for group, members in groups.items():
            taken.setdefault(self._place(clustered, group), []).extend(members)
        return plain, [
            Share(queue, part, (number,) if number else ())
            for (queue, number), found in taken.items()
            for part in pieces(sorted(found))
        ]

    def _of_groups(self, address: str, clustered_queues: Sequence[ClusteredQueue]) -> ClusteredQueue | None:
        """The name of an address whose groups have one way each; None: there is none."""
        if len(clustered_queues) != 1 or not self._pins.takes(address) or not self._pinned(clustered_queues[0]):
            return None
        return clustered_queues[0]

    def explain(
        self, address: str, clustered_queues: Sequence[ClusteredQueue], group: str
    ) -> tuple[Member, str] | None:
        """The queue to which a message of a group goes, and why; None: it is dealt as any other."""
        clustered = self._of_groups(address, clustered_queues)
        if clustered is None:
            return None
        name, local = (clustered.name, group), clustered.local
        if local is None:
            return self._chosen(
                clustered.remotes, name
            ), "all messages of its group go there, as this node has no queue"
        holder = self._pins.holder_of(name)
        queue, number = self._found(clustered, name, local, holder)
        for one in clustered.remotes:
            if (one.forward, one.number) == (queue, number):
                return one, "its group is consumed on that node"
        if holder == self._pins.own:
            return local, "its group is consumed on this node"
        if holder is not None:
            return local, "it waits here for messages of its group, and for the node that consumes these"
        return local, "it waits here until the nodes have agreed on which of them its group is consumed"

    def _pinned(self, clustered: ClusteredQueue) -> bool:
        """Whether the groups of a name have one way: no filter drops any, and all nodes are linked to this node."""
        local = clustered.local
        if local is not None and (local.spec.filter is not None or not local.roster.may_offer):
            return False
        return bool(clustered.remotes) and all(one.filter is None and one.distance == 1 for one in clustered.remotes)

    def _place(self, clustered: ClusteredQueue, group: str) -> tuple[Queue, int]:
        """The queue here for a group, and the number of the queue there to which it leads; 0: it is the queue itself.

        What is placed behind messages that wait here must not overtake them.
        """
        name, local = (clustered.name, group), clustered.local
        if local is None:
            binding = self._way(clustered.remotes, name)
            return binding.forward, binding.number
        return self._found(clustered, name, local, self._pins.use(name))

    def _found(
        self, clustered: ClusteredQueue, name: tuple[str, str], local: Queue, holder: str | None
    ) -> tuple[Queue, int]:
        if holder is None or holder in self._pins.leavers or self._waits(local, name[1]):
            return local, 0
        for one in clustered.remotes:
            if node_of(one) == holder and one.gone in ("", "away"):
                return one.forward, one.number
        return local, 0

    def _waits(self, queue: Queue, group: str) -> bool:
        known = queue.grouped is not None and group in queue.grouped.table
        return known or self._has_entries_for(queue)

    def _way(self, remotes: Sequence[RemoteBinding], name: tuple[str, str]) -> RemoteBinding:
        """The queue elsewhere for a group, where this node has none: always the same one, while it is there."""
        chosen = self._chosen(remotes, name)
        if node_of(chosen) != self._pins.way(name):
            self._pins.goes(name, node_of(chosen))
        return chosen

    def _chosen(self, remotes: Sequence[RemoteBinding], name: tuple[str, str]) -> RemoteBinding:
        there = [one for one in remotes if one.gone in ("", "away")] or list(remotes)
        before = self._pins.way(name)
        for one in there:
            if node_of(one) == before:
                return one
        # Of several senders without a queue each finds the same one, while they know the same.
        return sorted(there, key=node_of)[crc32(name[1].encode()) % len(there)]

    # -- messages that wait here

    def away(self, queue: Queue) -> Mapping[str, int]:
        """The groups of a queue that are to go to other nodes which can have them now, and the numbers of their last
        messages that are."""
        if queue.grouped is None or not self._pins.active:
            return {}
        holders = {node_of(one) for one in self._members(queue) if self._can_have(one)}
        return self._pins.settled(queue.name, queue.grouped.table, holders)

    def _can_have(self, binding: RemoteBinding) -> bool:
        return not binding.gone and bool(binding.forward.roster.consumers) and node_of(binding) in self._pins.targets

    def leads(self, queue: Queue, group: str) -> RemoteBinding | None:
        """The queue of the node that holds a group, if messages may go there now."""
        holder = self._pins.elsewhere.get((queue.name, group))
        known = queue.grouped.table.get(group) if queue.grouped is not None else None
        if known is not None and known.unacked:
            # Nobody there may have a message of it before the last one here is settled.
            return None
        for one in self._members(queue):
            if node_of(one) == holder and self._can_have(one):
                return one
        return None

    def give_up(self, queue: Queue, group: str) -> None:
        """Hold the pin of a group no more that has no consumer here; another node may get it."""
        name = queue.name, group
        known = queue.grouped.table.get(group) if queue.grouped is not None else None
        if name in self._pins.held and known is not None and not known.unacked and queue.grouped is not None:
            self._pins.give_up(name)
            queue.grouped.closed(group)

    def _members(self, queue: Queue) -> list[RemoteBinding]:
        address = self._router.addresses.get(queue.address)
        clustered = address.clustered_queues.get(queue.name) if address is not None else None
        return [one for one in clustered.remotes if one.distance == 1] if clustered is not None else []

    def has_place(self, queue: Queue, holder: str) -> bool:
        """Whether a node has a queue of the name, or is not there to say so."""
        return holder not in self._pins.targets or any(node_of(one) == holder for one in self._members(queue))

    def able(self, queue: Queue) -> dict[str, tuple[Filter, ...]]:
        """The filters of consumers by the ids of their nodes, this node first.  Only nodes with a use for messages."""
        found = {}
        filters = filters_of(queue)
        if filters is not None and not queue.paused:
            found[self._pins.own] = filters
        for one in self._members(queue):
            if (one.mode == "strict" or one.consumers) and not one.gone and node_of(one) in self._pins.targets:
                found[node_of(one)] = one.filters if one.mode != "strict" else ()
        return found

    def preferred(self, queue: Queue, group: str, able: Mapping[str, tuple[Filter, ...]]) -> tuple[str, bool]:
        """The id of that of the able nodes which is to have a group, and whether this node could; empty: none wants
        its first message.  Those that do take turns."""
        nodes = list(able)
        if any(able.values()):
            takes = self._first_of(queue, group)
            nodes = [node for node, filters in able.items() if not filters or takes(filters)]
        address = self._router.addresses.get(queue.address)
        clustered = address.clustered_queues.get(queue.name) if address is not None else None
        if not nodes:
            return "", False
        here = self._pins.own in nodes
        if clustered is None:
            return nodes[0], here
        clustered.next_index += 1
        return nodes[(clustered.next_index - 1) % len(nodes)], here

    def _first_of(self, queue: Queue, group: str) -> Callable[[tuple[Filter, ...]], bool]:
        """The verdict of filters on the first message of a group; one that is on the disk only they may take."""
        known = queue.grouped.table.get(group) if queue.grouped is not None else None
        for view in known.backlog.views() if known is not None else ():
            if view.run.paged or view.groups is None:
                break
            rows = [row for row, one in enumerate(view.groups) if one == group and view.states[row] == PARKED]
            if rows:
                wants, row = wants_of(view.run), rows[0]
                return lambda filters: wants(filters, row)
        return lambda filters: True


def node_of(binding: RemoteBinding) -> str:
    """The id of the node of a queue elsewhere."""
    return binding.path[0] if binding.path else binding.forward.name.rpartition(".")[2]
