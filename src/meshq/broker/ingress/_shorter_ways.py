"""Copies of a topic's messages that come once more through a network of brokers, over fewer of them than before.

A copy that has gone as far as it may ends here, and a later one that has come a shorter way could go further.  So a
later copy is no more for the queues here, but still for the network consumers, if it has come over fewer brokers than
all before.
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
from meshq.wire import KIND_HEADERS, KIND_ID, duplicate_ids


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


def _hops(messages: RunMessages, row: int) -> int:
    messages.move(row, properties=False)
    return int(messages.header("hops"))
