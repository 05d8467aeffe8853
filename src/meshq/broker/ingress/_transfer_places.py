"""Transfer: the messages of a node that leaves go to the queues of the same names on one other node."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.address import Target
from meshq.broker.catalog._distribution_plan import RemoteBinding, Share, takes
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._redistribution import carried_whole, has_room
from meshq.broker.queue._delivery_options import options_of_moved
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.records import SettledRow
from meshq.errors import UsageError


class TransferPlaces:
    """The places of messages on the node of a store-and-forward queue, in all modes of links."""

    def __init__(self, ingress: Ingress, router: Router) -> None:
        self._ingress = ingress
        self._router = router

    def aim(self, queue: Queue, forward: Queue) -> Target | None:
        """Return the target that ``place`` understands; None: the queue is for no other node."""
        if queue.kind in (QueueKind.TEMPORARY, QueueKind.STORE_AND_FORWARD):
            return None
        if self._router.addresses[queue.address].routing == "multicast":
            # A node drops what comes for a subscription that it does not have any more.
            return None
        return Target(queue.address, forward.name)

    def movable(
        self, queue: Queue, forward: Queue, view: QueueRun, run: StoredRun, rows: Sequence[int]
    ) -> Sequence[int] | None:
        """Return those rows of a run that may move now; None: the queue keeps all its messages for now."""
        there = self._there(queue, forward)
        if there is None or not has_room(forward):
            return None
        if run.durable and queue.durable and not there.durable:
            return []
        wants = wants_of(run)
        return [row for row in carried_whole(view, rows, there.features) if takes(there.filter, row, wants)]

    def place(self, run: StoredRun, queue: Queue, target: Target, gone: tuple[SettledRow, ...]) -> bool:
        """Place messages of a queue for the queue of its name on the target's node; ``gone``: the rows that the same
        record removes from the queue.  Return whether a record was written.

        Raises:
            UsageError: the node has no such queue, or is not linked; nothing changed.
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        forward = self._router.queues.get(target.queue or "")
        there = self._there(queue, forward) if forward is not None else None
        if forward is None or there is None:
            raise UsageError(f"the node of {target.queue!r} is not linked, or has no queue {queue.name!r}")
        shares = [Share(forward, range(run.content.rows), (there.number,))]
        return self._ingress.place_shares(run, shares, options_of_moved(run.content, run.options), gone)

    def _there(self, queue: Queue, forward: Queue) -> RemoteBinding | None:
        """The queue of the same name and address on a node that is linked, if it drops nothing unseen."""
        if not forward.roster.consumers or self._router.by_number.get(queue.number) is not queue:
            return None
        wanted = queue.name, queue.address, self._router.addresses[queue.address].routing
        for one in self._router.remote(forward.number.to_bytes(8, "big")):
            if (one.name, one.address, one.routing) == wanted and not one.gone:
                return one if one.understood else None
        return None
