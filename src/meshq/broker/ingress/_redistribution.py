"""Redistribution: messages that wait in a queue without a consumer here go to queues of its name on other nodes.

Messages are moved where they stand: nothing is taken out of a queue before one record places it elsewhere.  So there is
nothing to give back when a consumer comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from meshq import limits
from meshq.broker.catalog._address_quota import AddressQuota
from meshq.broker.catalog._demand_updates import filters_told
from meshq.broker.catalog._distribution_plan import ClusteredQueue, RemoteBinding, Share, Wants, plan, takers
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._filter_scan_plan import placed
from meshq.broker.ingress._group_places import GroupPlaces
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.queue._delivery_options import options_of_moved
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import DELAYED, GONE, QueueRun, StoredRun
from meshq.broker.records import SettledRow
from meshq.broker.records._row_options import RowOptions
from meshq.broker.records._row_ranges import pieces
from meshq.errors import UsageError
from meshq.selector import Filter

#: While so many messages wait for a node, no others are moved to it: what has moved does not come back for a consumer
#: here.
AHEAD_MAX: Final = 8 * limits.RUN_MESSAGES_MAX
#: The modes of links to which messages are redistributed.
MODES: Final = ("on_demand", "off_with_redistribution")


class Redistribution:
    """The places on other nodes for messages that no consumer here can get."""

    def __init__(self, ingress: Ingress, router: Router) -> None:
        self._ingress = ingress
        #: Where groups go that are consumed on another node.
        self.groups: GroupPlaces = ingress.groups
        self._router = router
        # Store-and-forward queues that had no room when messages were to move there; an ordered set.
        self._full: dict[Queue, None] = {}
        #: How often such a queue has had room again, by its number.
        self.times_freed: Counter[int] = Counter()

    def away(self, queue: Queue) -> Mapping[str, int]:
        """The groups of a queue that are to go to the nodes that hold these, at any setting of redistribution; none of
        those whose node is away."""
        if queue.roster.may_offer is None or queue.paused or self._router.by_number.get(queue.number) is not queue:
            return {}
        if queue.roster.cursor is not None:
            # Its messages are the cursor's, whoever holds their groups.
            return {}
        return self.groups.away(queue)

    def keeps(self, queue: Queue) -> bool:
        """Whether a queue keeps its messages, also if consumers elsewhere want them."""
        if queue.settings.redistribution_delay is None:
            return True
        if queue.paused or self._router.by_number.get(queue.number) is not queue:
            return True
        if queue.roster.cursor is not None:
            return True
        if queue.roster.consumers and (not queue.settings.redistribute_unmatched or filters_here(queue) is None):
            return True
        if self._router.addresses[queue.address].routing == "multicast":
            # A node drops what comes for a subscription that it does not have any more.
            return True
        return queue.kind in (QueueKind.TEMPORARY, QueueKind.STORE_AND_FORWARD)

    def takers(self, queue: Queue) -> list[RemoteBinding]:
        """Return the queues of this name that have a consumer on a linked node.

        Where neither node knows what the consumers of the other one want, each would give to the other one what no
        consumer takes, for ever: nothing moves between these.
        """
        address = self._router.addresses.get(queue.address)
        clustered = address.clustered_queues.get(queue.name) if address is not None else None
        found = [
            remote
            for remote in (clustered.remotes if clustered is not None else ())
            if remote.mode in MODES
            and remote.consumers
            and remote.understood
            and not remote.gone
            and remote.forward.roster.consumers
        ]
        if all(remote.precise for remote in found) or filters_told(queue) is not None:
            return found
        return [remote for remote in found if remote.precise]

    def movable(self, queue: Queue, view: QueueRun, run: StoredRun, rows: Sequence[int]) -> list[int] | None:
        """Return those rows of a run that may move now; None: the queue keeps all its messages.

        Only what a link can carry whole moves: messages with an origin or a delivery count, and bodies that are larger
        than a frame, go to nodes that understand these.  While groups are to go to the nodes that hold these, nothing
        else goes.
        """
        if away := self.away(queue):
            return self._of_groups(queue, view, rows, away)
        if self.keeps(queue):
            return None
        needed, wants, here = _features_of(view, rows), wants_of(run), filters_here(queue)
        if view.groups is not None and self._router.pins.takes(queue.address):
            rows = self._without_groups(queue, view, rows)
        # Where none of the nodes that know all of it wants anything, what needs no feature goes to any that does.
        for features in dict.fromkeys((needed, frozenset[str]())):
            group = self._group(queue, run, features)
            if group is None:
                return None
            movable = [row for row in carried_whole(view, rows, tuple(features)) if _is_wanted(group, row, wants)]
            if here:
                # A group stays with whoever gets the rest of it here.
                groups = view.groups
                movable = [row for row in movable if not (groups and groups[row] is not None) and not wants(here, row)]
            if movable:
                return movable
        return []

    def place(self, run: StoredRun, queue: Queue, gone: tuple[SettledRow, ...]) -> bool:
        """Place messages of a queue, for the queues of its name on other nodes; ``gone``: the rows that the same record
        removes from it.  Return whether a record was written.

        Raises:
            UsageError: nobody elsewhere wants all of it; nothing changed.
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        asked = options_of_moved(run.content, run.options)
        shares = self._shares(queue, run, asked)
        if len(placed(shares)) < run.content.rows:
            raise UsageError(f"no consumer of {queue.name!r} on another node takes the message")
        return self._ingress.place_shares(run, shares, asked, gone)

    def _of_groups(self, queue: Queue, view: QueueRun, rows: Sequence[int], away: Mapping[str, int]) -> list[int]:
        """The rows of groups that other nodes hold, which have room for these and take them whole."""
        found = []
        leads: dict[str, RemoteBinding | None] = {}
        for row in rows if view.groups is not None else ():
            group = view.groups[row] if view.groups is not None else None
            if group is None or view.first + row > away.get(group, 0):
                # It has come since the arbiter was asked.
                continue
            if group not in leads:
                leads[group] = self._lead(queue, group, durable=view.run.durable)
            binding = leads[group]
            if binding is not None and carried_whole(view, (row,), binding.features):
                found.append(row)
            else:
                # What stands behind it must not overtake it.
                leads[group] = None
        return found

    def _lead(self, queue: Queue, group: str, *, durable: bool) -> RemoteBinding | None:
        binding = self.groups.leads(queue, group)
        if binding is None or (durable and queue.durable and not binding.durable):
            return None
        # At any credit: no consumer here may get them.  So they are never too many, either.
        if not has_room(binding.forward):
            self._full[binding.forward] = None
            return None
        return binding

    def _without_groups(self, queue: Queue, view: QueueRun, rows: Sequence[int]) -> list[int]:
        """The rows without a group.  A group that nobody here has consumes goes as a whole, once its pin has moved."""
        assert view.groups is not None
        if not queue.roster.consumers:
            for group in dict.fromkeys(filter(None, (view.groups[row] for row in rows))):
                self.groups.give_up(queue, group)
        return [row for row in rows if view.groups[row] is None]

    def freed(self, forward: Queue) -> None:
        """Tell the watchers if a store-and-forward queue has room again for messages that could not move there.

        Of which address is not remembered: whoever looks again finds out.
        """
        if forward in self._full and has_room(forward):
            del self._full[forward]
            self.times_freed[forward.number] += 1
            self._router.mobility_changed(forward.number.to_bytes(8, "big"))

    def _shares(self, queue: Queue, run: StoredRun, asked: Sequence[RowOptions]) -> list[Share]:
        if self._router.pins.takes(queue.address) and any(one.group is not None for one in asked):
            return self._held_shares(queue, asked)
        rows = range(run.content.rows)
        needed = run.options.features(rows) if run.options is not None else set()
        if run.options is not None and run.options.origin is not None:
            needed.add("origin")
        if is_large_for_links(run):
            needed.add("large")
        group = self._group(queue, run, needed)
        if not group:
            return []
        shares = plan(group, rows, anycast=True, next_index=0, wants=wants_of(run))
        self._router.addresses[queue.address].clustered_queues[queue.name].next_index = group[0].next_index
        return shares

    def _held_shares(self, queue: Queue, asked: Sequence[RowOptions]) -> list[Share]:
        """The shares of messages of groups, each for the node that holds its group."""
        taken: dict[tuple[Queue, int], list[int]] = {}
        for row, one in enumerate(asked):
            binding = self.groups.leads(queue, one.group) if one.group is not None else None
            if binding is not None:
                taken.setdefault((binding.forward, binding.number), []).append(row)
        return [Share(forward, part, (number,)) for (forward, number), rows in taken.items() for part in pieces(rows)]

    def _group(self, queue: Queue, run: StoredRun, needed: Set[str] = frozenset()) -> list[ClusteredQueue] | None:
        """The takers that have room, as the only members of their name; None if there are none, and empty if none of
        these keeps the messages of a run as this queue does: one that is not durable would lose them with its node, and
        one whose node lacks a feature that they need would not know all of them."""
        found = self.takers(queue)
        quota = self._router.quotas.get(queue.address)
        remotes = [remote for remote in found if has_room(remote.forward, queue.address, quota)]
        if len(remotes) < len(found):
            self._full.update((remote.forward, None) for remote in found if remote not in remotes)
        if not remotes:
            return None
        ring = ClusteredQueue(queue.name)
        ring.remotes = [
            remote
            for remote in remotes
            if (remote.durable or not (run.durable and queue.durable)) and needed <= {*remote.features}
        ]
        ring.next_index = self._router.addresses[queue.address].clustered_queues[queue.name].next_index
        return [ring] if ring.remotes else []


def filters_here(queue: Queue) -> tuple[Filter, ...] | None:
    """Return the filters of the consumers of a queue; None: one of them takes all messages."""
    found: dict[Filter, None] = {}
    for consumer in queue.roster.consumers:
        if consumer.filter is None:
            return None
        found[consumer.filter] = None
    return tuple(found)


def _features_of(view: QueueRun, rows: Sequence[int]) -> frozenset[str]:
    """Return the features that a node needs for the origin, the delivery counts and the body of some rows of a run."""
    options = view.run.options
    large = {"large"} if is_large_for_links(view.run) else set()
    origin = {"origin"} if options is not None and options.origin is not None else set()
    counts = {"counts"} if any(view.deliveries(row) for row in rows) else set()
    return frozenset(origin | counts | large)


def _is_wanted(group: Sequence[ClusteredQueue], row: int, wants: Wants) -> bool:
    found = takers(group, lambda filters: wants(filters, row))
    return any(taker.gets and taker.asks for taker in found)


def carried_whole(view: QueueRun, rows: Sequence[int], features: Sequence[str] = ()) -> Sequence[int]:
    """Return those rows of a run that a link carries whole to a node with these features.

    Each of these goes to nodes with the feature of its name: the ``origin`` of a moved message; the ``counts`` of a
    message that was delivered, or may have been before a restart; when a message is ``due`` again; a ``large`` body.
    """
    options = view.run.options
    moved = options is not None and options.origin is not None
    large = is_large_for_links(view.run)
    if (large and "large" not in features) or (moved and "origin" not in features):
        return ()
    counts, due = "counts" in features, "due" in features
    return [row for row in rows if (due or view.states[row] != DELAYED) and (counts or not view.deliveries(row))]


def is_large_for_links(run: StoredRun) -> bool:
    """Whether the body of a run is larger than a frame, so that only a node that takes bodies in blocks takes it."""
    return run.body is not None and run.body.size_bytes > limits.MESSAGE_BYTES_MAX


def needed_features(views: Iterable[QueueRun]) -> set[str]:
    """Return the features that a node needs for the messages of some runs."""
    needed: set[str] = set()
    for view in views:
        if view.run.options is not None and view.live:
            needed |= view.run.options.features([row for row, state in enumerate(view.states) if state != GONE])
        if is_large_for_links(view.run) and view.live:
            needed.add("large")
    return needed


def has_room(forward: Queue, address: str = "", quota: AddressQuota | None = None) -> bool:
    """Whether more messages of an address may go ahead to the node of a store-and-forward queue.

    ``address``: empty for entries that are no messages.  ``quota``: of the address here.  While links wait for room in
    it, a move goes ahead without credit: the other node may be full of what waits for this one.

    What waits there because another address is full at the node keeps nothing here.
    """
    waiting = forward.counts.ready + forward.counts.unacked
    if forward.branches is not None:
        makes_room = quota is not None and quota.links_wait and not forward.branches.stands(address)
        if not (makes_room or forward.branches.has_credit(address)):
            return False
        waiting -= forward.branches.held_beside(address)
    return waiting < AHEAD_MAX
