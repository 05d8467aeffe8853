"""Handing over prepared transactions: when one may go, and its steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.transactions import PREPARED_FEATURE
from meshq.broker.work._long_operations import DiskSpaceWait, LongOperation, Steps, Values

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._redistributing import MoveWatch
    from meshq.broker.transactions import ServerPreparedTransaction


def prepared_xids(core: Core) -> list[bytes]:
    """Return the xids of all transactions that are prepared here, or of which a part is."""
    two_phase = core.transactions.two_phase
    return [*(one.xid for one in two_phase), *(xid for _, xid in two_phase.arriving)]


def begun_ways(core: Core) -> set[int]:
    """Return the numbers of the store-and-forward queues over which transactions are on their way."""
    return {one.forward for one in core.transactions.two_phase if one.forward}


def takes_prepared(core: Core, forward: Queue) -> bool:
    """Whether the node of a store-and-forward queue is linked, and understands prepared transactions."""
    features = core.router.features.get(forward.number.to_bytes(8, "big"), ())
    return bool(forward.roster.consumers) and PREPARED_FEATURE in features


def hand_over_prepared(core: Core, xid: bytes, forward: Queue, watch: MoveWatch) -> None:
    """Take the next step of a prepared transaction's way to the node of a store-and-forward queue, and tell how many
    steps were taken, 0 or 1, when that is durable."""

    def ended(values: Values) -> None:
        core.release_queue.when_all_is_durable(partial(watch.done, values["steps"]))

    core.running_operations.schedule(LongOperation(_step(core, xid, forward, watch), ended, watch.failed))
    core.pending.run()


def _step(core: Core, xid: bytes, forward: Queue, watch: MoveWatch) -> Steps:
    """Take a step once the disk has room for all that the transaction sends."""
    transfer = core.transactions.transfer
    found = _ready(core, xid, forward, watch)
    if found is not None and (size := transfer.weigh(found)) > core.release_queue.large_bytes:
        yield DiskSpaceWait(size)
        # Somebody may have decided it meanwhile.
        found = _ready(core, xid, forward, watch)
    yield {"steps": int(found is not None and transfer.hand_over(found, forward))}


def _ready(core: Core, xid: bytes, forward: Queue, watch: MoveWatch) -> ServerPreparedTransaction | None:
    """Return a transaction that can take a step now; None: it can't."""
    found = core.transactions.two_phase.known(xid)
    if found is None or not watch.wanted or not takes_prepared(core, forward):
        return None
    return found if found.forward or _goes(core, found, forward) else None


def _goes(core: Core, prepared: ServerPreparedTransaction, forward: Queue) -> bool:
    """Whether all messages that a transaction holds can move to a node: half of them would be of no use."""
    places = core.mover.transfer_places
    for queue, spans in prepared.transaction.acked_in_transaction.items():
        if queue.kind is QueueKind.TEMPORARY:
            # It has ended with its session, and its messages end with the transaction.
            return False
        for span in spans:
            rows = range(span.start, span.stop, span.step)
            if places.carried(queue, forward, span.view, span.view.run, rows) != list(rows):
                return False
    return True
