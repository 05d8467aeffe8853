"""Copies of a topic's messages that come once more through a network of brokers.

A copy that has gone as far as it may ends here, and a later one that has come a shorter way could go further.  So a
later copy is no more for the queues here, but still for the network consumers, if it has come over fewer brokers than
all before.

Nodes of a cluster that are linked to one broker each have a copy, and deal it to each other: a queue here takes what
came first, over a link or from a node.  Only what the queue itself has had is left out: a copy that was moved may be
the only one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Final

from meshq import limits
from meshq.broker.catalog._distribution_plan import Member, RemoteBinding, Share, plan_by_key
from meshq.broker.catalog._router import Address, Router
from meshq.broker.ingress._distribution import Named, PartGroups, joined, rows_without, shared, wants_of
from meshq.broker.ingress._filter_scan_plan import sift
from meshq.broker.ingress._group_places import node_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.broker.records import SettledRow
from meshq.broker.records._row_ranges import pieces
from meshq.ids import NETWORK_MARK
from meshq.wire import KIND_HEADERS, KIND_ID, duplicate_ids, has_ids

#: More brokers than a message may come over.
_UNKNOWN: Final = limits.NETWORK_HOPS_MAX + 1


def onward_queues(address: Address, kinds: int) -> list[Queue]:
    """Return the queues of the network consumers of a topic; none if no message of a run has a path."""
    asked = KIND_ID | KIND_HEADERS
    if address.routing != "multicast" or not address.filtered or kinds & asked != asked:
        return []
    return [one for one in address.queues if _goes_on(one)]


def _goes_on(queue: Queue) -> bool:
    """Whether the messages of a queue of a topic go to another broker, now or when its link is up again."""
    consumers = queue.roster.consumers
    return bool(queue.spec.routes or (consumers and consumers[0].routes))


def note_recovered(address: Address, ids: Sequence[bytes]) -> None:
    """Remember that it is not known any more over how many brokers messages had come before this life of the node."""
    if address.routing == "multicast":
        # A later copy goes on, once; where it comes it is known.
        address.hops.update(dict.fromkeys((one for one in ids if one.startswith(NETWORK_MARK)), _UNKNOWN))
        _forget_oldest(address.hops, address.duplicates.capacity)


def shorter_shares(run: StoredRun, address: Address, skipped: Sequence[int], queues: Sequence[Queue]) -> list[Share]:
    """Return the shares of network consumers in messages whose ids are known, but not by so short a way."""
    if not address.hops or not queues:
        return []
    ids, messages = duplicate_ids(run.content), RunMessages(run)
    rows = [row for row in skipped if 0 < _hops(messages, row) < address.hops.get(ids[row], 0)]
    return sift(queues, rows, anycast=False, next_index=0, wants=wants_of(run)) if rows else []


def note_ways(run: StoredRun, address: Address, skipped: Sequence[int]) -> None:
    """Remember over how many brokers the messages of a run have come that was placed.  ``skipped``: the rows whose ids
    were known."""
    ids, messages, repeated = duplicate_ids(run.content), RunMessages(run), dict.fromkeys(skipped)
    for row, duplicate_id in enumerate(ids):
        hops = _hops(messages, row)
        known = address.hops.get(duplicate_id, 0 if row in repeated else math.inf)
        # Less than one there is not.
        if duplicate_id and hops < known and (hops > 1 or row in repeated):
            address.hops[duplicate_id] = hops
    _forget_oldest(address.hops, address.duplicates.capacity)


def not_had(run: StoredRun, address: Address, shares: list[Share]) -> list[Share]:
    """Return the shares of a run without messages that their queues have had from another node of the cluster.

    Nor do they go to queues of a name whose queue here has had them.
    """
    had = [address.had.get(one, ()) for one in duplicate_ids(run.content)] if address.had else []
    if not any(had):
        return shares
    names = {
        (remote.forward, remote.number): one.local.number
        for one in address.clustered_queues.values()
        if one.local is not None
        for remote in one.remotes
    }
    found = []
    for share in shares:
        rows: dict[tuple[int, ...], list[int]] = {}
        for row in share.rows:
            remote = tuple(one for one in share.remote if names.get((share.queue, one), 0) not in had[row])
            if remote or (not share.remote and share.queue.number not in had[row]):
                rows.setdefault(remote, []).append(row)
        found += [Share(share.queue, part, remote) for remote, some in rows.items() for part in pieces(some)]
    return found


def from_node(run: StoredRun, address: Address | None, shares: list[Share]) -> list[Share]:
    """Return the shares of a run from another node of the cluster without messages that the queues here have had.

    What has a history was moved, and is left out nowhere.
    """
    options = run.options
    if address is None or not address.had or not has_ids(run.content.table):
        return shares
    if options is not None and (options.origin is not None or options.holder):
        return shares
    former = options.former if options is not None and options.former is not None else {}
    had = [address.had.get(one, ()) for one in duplicate_ids(run.content)]
    if not any(had):
        return shares
    return [
        share._replace(rows=part)
        for share in shares
        for part in pieces([row for row in share.rows if row in former or share.queue.number not in had[row]])
    ]


def note_had(run: StoredRun, address: Address | None, shares: Sequence[Share]) -> None:
    """Remember which queues here have been given messages of a topic that came through a network of brokers."""
    if address is None or address.routing != "multicast" or not has_ids(run.content.table):
        return
    ids = duplicate_ids(run.content)
    queues: dict[int, tuple[int, ...]] = {}
    for share in shares:
        for row in share.rows if not share.queue.forwards and share.queue.address == address.name else ():
            if ids[row].startswith(NETWORK_MARK):
                queues[row] = (*queues.get(row, ()), share.queue.number)
    # What is alike is kept once.
    alike = {found: found for found in queues.values()}
    for row, found in queues.items():
        known = address.had.get(ids[row])
        address.had[ids[row]] = alike[found] if known is None else tuple(dict.fromkeys((*known, *found)))
    _forget_oldest(address.had, address.duplicates.capacity)


def _forget_oldest(known: dict[bytes, Any], capacity: int) -> None:
    """Keep as many ids as an address remembers, the newest ones."""
    # All at once: each search for the first key of a dictionary passes all that were deleted before it.
    for one in list(islice(known, max(0, len(known) - capacity))):
        del known[one]


def _copied_rows(run: StoredRun, address: Address, rows: Sequence[int]) -> list[int]:
    """Return the rows of a topic's messages that came through a network of brokers, and of which several nodes of a
    cluster may each have a copy for one queue."""
    if address.routing != "multicast" or not has_ids(run.content.table):
        return []
    if not any(one.remotes for one in address.clustered_queues.values()):
        return []
    ids = duplicate_ids(run.content)
    return [row for row in rows if ids[row].startswith(NETWORK_MARK)]


class Copies:
    """Which queues here have had messages that may come once more, from a link of a network or from another node."""

    __slots__ = ("_router",)

    def __init__(self, router: Router) -> None:
        self._router = router

    def may_come_again(self, address: Address, fresh: Sequence[bytes]) -> bool:
        """Whether messages with these new ids may come once more from another node of the cluster, or have."""
        if address.routing != "multicast" or not (self._router.features or address.had):
            return False
        return any(one.startswith(NETWORK_MARK) for one in fresh)

    def shares_of(
        self,
        run: StoredRun,
        address: Address,
        only: Named,
        rows: Sequence[int],
        part_groups: PartGroups | None,
    ) -> list[Share]:
        """Divide messages among the queues of an address; copies that other nodes may have go by their ids."""
        copied = _copied_rows(run, address, rows) if only is None else []
        if not copied:
            return shared(run, address, only, rows, part_groups)
        dealt, known = self._deal(run, address, copied), dict.fromkeys(copied)
        rest = [row for row in rows if row not in known]
        return joined(dealt + shared(run, address, only, rest, part_groups)) if rest else dealt

    def _deal(self, run: StoredRun, address: Address, rows: Sequence[int]) -> list[Share]:
        """Return the shares of messages of which other nodes may have a copy: all nodes deal a message to one node."""
        ids, own = duplicate_ids(run.content), self._router.pins.own

        def key(row: int, member: Member) -> bytes:
            node = node_of(member) if isinstance(member, RemoteBinding) else own
            return sha256(ids[row] + node.encode()).digest()

        return plan_by_key(list(address.clustered_queues.values()), rows, key, wants_of(run))

    def note_whole(self, run: StoredRun, address: Address, queues: Sequence[Queue], skipped: tuple[int, ...]) -> None:
        """Remember that all of these queues have been given a run without the ``skipped`` rows."""
        parts = pieces(rows_without(run.content.rows, skipped))
        note_had(run, address, [Share(queue, part, ()) for queue in queues for part in parts])

    def forget_moved(self, run: StoredRun, gone: Sequence[SettledRow]) -> None:
        """Forget that queues have had messages which move elsewhere: these may come back, and then be the only ones.

        ``gone``: the rows that leave a queue.
        """
        for number in dict.fromkeys(one.queue for one in gone):
            queue = self._router.by_number.get(number)
            had = self._router.addresses[queue.address].had if queue is not None else {}
            for one in duplicate_ids(run.content) if had else ():
                if number in (known := had.get(one, ())):
                    had[one] = tuple(other for other in known if other != number)


def _hops(messages: RunMessages, row: int) -> int:
    messages.move(row, properties=False)
    return int(messages.header("hops"))
