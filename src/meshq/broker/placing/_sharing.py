"""Who gets what of a run whose messages don't all go the same way, or don't all go to one queue."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.broker.placing._distribution_plan import Share, Wants, plan
from meshq.broker.placing._router import Address
from meshq.broker.placing._sifting_plan import sift
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._rows import pieces
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.selector import Filter


def shared(run: StoredRun, address: Address, queue: Queue | None, rows: Sequence[int]) -> list[Share]:
    """Who gets what of a run that was sent to an address, or to one queue of it."""
    if queue is not None:
        return deal_here(run, address, [queue], rows)
    return _among_nodes(run, address, rows) if address.rings else deal_here(run, address, address.queues, rows)


def _among_nodes(run: StoredRun, address: Address, rows: Sequence[int]) -> list[Share]:
    """Who gets what of a run where other nodes have queues, too."""
    anycast = address.routing == "anycast"
    shares = plan(list(address.rings.values()), rows, anycast=anycast, turn=address.turn, wants=wants_of(run))
    address.turn += len(rows)
    return shares


def deal_here(run: StoredRun, address: Address, queues: Sequence[Queue], rows: Sequence[int]) -> list[Share]:
    """Who gets what of a run where only this node has queues."""
    anycast = address.routing == "anycast"
    shares = deal(run, queues, rows, anycast=anycast, turn=address.turn)
    if anycast and len(queues) > 1:
        address.turn += len(rows)
    return shares


def deal(run: StoredRun, queues: Sequence[Queue], rows: Sequence[int], *, anycast: bool, turn: int) -> list[Share]:
    """Deal rows to queues here: to all that take them, or to each queue in turn."""
    if any(queue.terms.filter is not None for queue in queues):
        return sift(queues, rows, anycast=anycast, turn=turn, wants=wants_of(run))
    count = len(queues) if anycast else 1
    dealt = [
        Share(queue, part, ())
        for index, queue in enumerate(queues)
        for part in pieces(rows[(index - turn) % count :: count])
    ]
    return [share for share in dealt if share.rows]


def wants_of(run: StoredRun) -> Wants:
    """Judges the messages of a run by filters; each message is read once."""
    messages = RunMessages(run)
    seen = -1

    def wants(filters: tuple[Filter, ...], row: int) -> bool:
        nonlocal seen
        if row != seen:
            seen = row
            messages.move(row, properties=True)
        return any(filter.matches(messages) for filter in filters)

    return wants
