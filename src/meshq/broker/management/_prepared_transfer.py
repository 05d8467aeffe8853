"""Handing over prepared transactions: when one may go, and its steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.transactions import PREPARED_FEATURE
from meshq.errors import AddressFullError, JournalBrokenError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._redistributing import MoveWatch
    from meshq.broker.transactions import ServerPreparedTransaction


def prepared_xids(core: Core) -> list[bytes]:
    """Return the xids of all transactions that are prepared here, or of which a part is."""
    two_phase = core.transactions.two_phase
    return [*(one.xid for one in two_phase), *(xid for _, xid in two_phase.arriving)]


def takes_prepared(core: Core, forward: Queue) -> bool:
    """Whether the node of a store-and-forward queue is linked, and understands prepared transactions."""
    features = core.router.features.get(forward.number.to_bytes(8, "big"), ())
    return bool(forward.roster.consumers) and PREPARED_FEATURE in features


def hand_over_prepared(core: Core, xid: bytes, forward: Queue, watch: MoveWatch) -> None:
    """Take the next step of a prepared transaction's way to the node of a store-and-forward queue, and tell how many
    steps were taken, 0 or 1, when that is durable."""
    found = core.transactions.two_phase.known(xid)
    if found is None or not takes_prepared(core, forward) or not (found.forward or _goes(core, found, forward)):
        watch.done(0)
        return
    try:
        steps = int(core.transactions.transfer.hand_over(found, forward))
    except (AddressFullError, JournalBrokenError) as error:
        watch.failed(error)
        return
    core.release_queue.when_all_is_durable(partial(watch.done, steps))
    core.pending.run()


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
