"""Transfer: the messages of a node that leaves go to the queues of the same names on one other node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from meshq import limits
from meshq.address import INTERNAL, Target
from meshq.broker.catalog._distribution_plan import RemoteBinding, Share, takes
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._held_rows import HeldRows
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._redistribution import carried_whole, has_room
from meshq.broker.queue._delivery_options import DeliveryOptions, QueueThere, options_of_moved
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.records import SettledRow
from meshq.errors import UsageError

#: Bytes that the header of a forwarded message takes beside its texts, its counts included; and before each text.
_HEADER_BYTES: Final = 416
_TEXT_BYTES: Final = 3


class _Way(NamedTuple):
    """The way to a queue on another node: the queue as known here, None if it is missing, and the node's features."""

    binding: RemoteBinding | None
    features: tuple[str, ...]


class TransferPlaces:
    """The places of messages on the node of a store-and-forward queue, in all modes of links."""

    def __init__(self, ingress: Ingress, router: Router) -> None:
        self._ingress = ingress
        self._router = router
        #: The rows of prepared transactions that go, too.
        self.held: HeldRows = HeldRows()
        #: The numbers of store-and-forward queues, and of queues here of which their nodes were told; an ordered set.
        self.told: dict[tuple[int, int], None] = {}
        #: Bytes of the messages that were placed for other nodes so far.
        self.moved_bytes: int = 0

    def aim(self, queue: Queue, forward: Queue) -> Target | None:
        """Return the target that ``place`` understands; None: the queue is for no other node."""
        if queue.kind in (QueueKind.TEMPORARY, QueueKind.STORE_AND_FORWARD):
            return None
        if queue.address.startswith(INTERNAL):
            return None
        return Target(queue.address, forward.name)

    def movable(
        self, queue: Queue, forward: Queue, view: QueueRun, run: StoredRun, rows: Sequence[int]
    ) -> Sequence[int] | None:
        """Return those rows of a run that may move now; None: the queue keeps all its messages for now."""
        return self.carried(queue, forward, view, run, rows) if has_room(forward, queue.address) else None

    def conflicts(self, queue: Queue, forward: Queue) -> bool:
        """Whether a node has something else under the name of a queue, or of its address."""
        return self._way(queue, forward) is None

    def carried(
        self, queue: Queue, forward: Queue, view: QueueRun, run: StoredRun, rows: Sequence[int]
    ) -> Sequence[int] | None:
        """As ``movable``, however many messages wait for the node already; of a paged run whose messages have to be put
        to another filter there: none."""
        way = self._way(queue, forward)
        if way is None:
            return None
        there = way.binding
        if there is not None and run.durable and queue.durable and not there.durable:
            return []
        if "queue" in way.features and not self._can_be_said(queue, run):
            return []
        wants, filter = wants_of(run), there.filter if there is not None else None
        if filter is not None and queue.spec.filter is not None and filter.text == queue.spec.filter.text:
            # All that is in the queue has passed it.
            filter = None
        if filter is not None and run.paged:
            return []
        return [row for row in carried_whole(view, rows, way.features) if takes(filter, row, wants)]

    def place(self, run: StoredRun, queue: Queue, target: Target, gone: tuple[SettledRow, ...]) -> bool:
        """Place messages of a queue for the queue of its name on the target's node; ``gone``: the rows that the same
        record removes from the queue.  Return whether a record was written.

        Raises:
            UsageError: the node has no place for the messages, or is not linked; nothing changed.
            AddressFullError: the disk is full; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        forward = self._router.queues.get(target.queue or "")
        way = self._way(queue, forward) if forward is not None else None
        if forward is None or way is None:
            raise UsageError(f"the node of {target.queue!r} is not linked, or has no place for {queue.name!r}")
        remote: tuple[int, ...] = ()
        if "queue" not in way.features and way.binding is not None:
            remote = (way.binding.number,)
        else:
            run.options = (run.options or DeliveryOptions(0))._replace(there=self.described(queue))
        shares = [Share(forward, range(run.content.rows), remote)]
        size = run.content_bytes + (run.body.size_bytes if run.body is not None else 0)
        written = self._ingress.place_shares(run, shares, options_of_moved(run.content, run.options), gone)
        self.moved_bytes += size
        return written

    def described(self, queue: Queue) -> QueueThere:
        """Return a queue as another node can make it."""
        spec, address = queue.spec, self._router.addresses[queue.address]
        features = ("durable" if queue.durable else "", "on_use" if spec.auto_created else "")
        return QueueThere(
            queue.name, address.routing, spec.filter_text, spec.subscription, " ".join(filter(None, features))
        )

    def _can_be_said(self, queue: Queue, run: StoredRun) -> bool:
        """Whether a header has room for all that is said of a message of a queue: where it goes, and its origin."""
        origin = run.options.origin if run.options is not None else None
        texts = (queue.address, *self.described(queue), *(origin or ()))
        return sum(_TEXT_BYTES + len(text.encode()) for text in texts) <= limits.HEADER_BYTES_MAX - _HEADER_BYTES

    def _way(self, queue: Queue, forward: Queue) -> _Way | None:
        """The way to the queue of the same name and address on a node that is linked, if nothing is dropped there
        unseen; None: there is none."""
        if not forward.roster.consumers or self._router.by_number.get(queue.number) is not queue:
            return None
        link, routing = forward.number.to_bytes(8, "big"), self._router.addresses[queue.address].routing
        features = self._router.features.get(link, ())
        found: RemoteBinding | None = None
        for one in self._router.remote(link):
            if one.distance > 1:
                # Of a node behind that one.
                continue
            if one.gone:
                return None
            if one.name == queue.name:
                found = one
            elif one.address == queue.address and one.routing != routing:
                return None
        same = found is None or (found.address, found.routing) == (queue.address, routing)
        if not same or not (found is None or found.understood):
            # Another queue has the name there, or nobody here knows what the queue drops.
            return None
        if "queue" not in features and (found is None or routing == "multicast"):
            # Such a node drops what comes for a subscription that it does not have any more.
            return None
        return _Way(found, features)
