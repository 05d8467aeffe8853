"""Copies of a topic's messages that come once more through a network of brokers.

A copy that has gone as far as it may ends here, and a later one that has come a shorter way could go further.  So a
later copy is no more for the queues here, but still for the network consumers, if it has come over fewer brokers than
all before.

Nodes of a cluster that are linked to one broker each have a copy, and deal it to each other: a queue here takes what
came first, over a link or from a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._filter_scan_plan import sift
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.broker.records._row_ranges import pieces
from meshq.ids import NETWORK_MARK
from meshq.wire import KIND_HEADERS, KIND_ID, duplicate_ids, has_ids


def onward_queues(address: Address, kinds: int) -> list[Queue]:
    """Return the queues of the network consumers of a topic; none if no message of a run has a path."""
    asked = KIND_ID | KIND_HEADERS
    if address.routing != "multicast" or not address.filtered or kinds & asked != asked:
        return []
    return [one for one in address.queues if one.roster.consumers and one.roster.consumers[0].routes]


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
    while len(address.hops) > address.duplicates.capacity:
        del address.hops[next(iter(address.hops))]


def not_had(run: StoredRun, address: Address, shares: list[Share]) -> list[Share]:
    """Return the shares of a run without messages that another node of the cluster has dealt to their queues."""
    if not address.dealt:
        return shares
    had = [address.dealt.get(one, ()) for one in duplicate_ids(run.content)]
    if not any(had):
        return shares
    return [
        share._replace(rows=part)
        for share in shares
        for part in pieces([row for row in share.rows if share.queue.number not in had[row]])
    ]


def from_node(run: StoredRun, address: Address | None, shares: list[Share]) -> list[Share]:
    """Return the shares of a run from another node of the cluster without messages that the queues here have."""
    if address is None or not _has_network_ids(run):
        return shares
    ids = duplicate_ids(run.content)
    # What came over a link was put to all queues here.
    fresh = address.duplicates.fresh_rows([one if one.startswith(NETWORK_MARK) else b"" for one in ids])
    kept = dict.fromkeys(fresh if fresh is not None else range(len(ids)))
    here = not_had(run, address, [share for share in shares if not share.queue.forwards])
    wanted = [
        share._replace(rows=part) for share in here for part in pieces([row for row in share.rows if row in kept])
    ]
    return [*wanted, *(share for share in shares if share.queue.forwards)]


def note_dealt(run: StoredRun, address: Address | None, shares: Sequence[Share]) -> None:
    """Remember which queues here have messages of a topic from another node of the cluster."""
    if address is None or not _has_network_ids(run):
        return
    ids = duplicate_ids(run.content)
    for share in shares:
        for row in share.rows if not share.queue.forwards else ():
            if ids[row].startswith(NETWORK_MARK):
                address.dealt[ids[row]] = (*address.dealt.get(ids[row], ()), share.queue.number)
    while len(address.dealt) > address.duplicates.capacity:
        del address.dealt[next(iter(address.dealt))]


def _has_network_ids(run: StoredRun) -> bool:
    return has_ids(run.content.table) and any(one.startswith(NETWORK_MARK) for one in duplicate_ids(run.content))


def _hops(messages: RunMessages, row: int) -> int:
    messages.move(row, properties=False)
    return int(messages.header("hops"))
