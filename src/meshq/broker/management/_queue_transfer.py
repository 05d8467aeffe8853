"""Queues of a leaving node that are made at the node that takes over, so that no message is missed by their users."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meshq import limits
from meshq.address import INTERNAL
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.ingress._redistribution import has_room
from meshq.broker.queue._delivery_options import DEFINE, DeliveryOptions
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import StoredRun
from meshq.broker.records._row_options import RowOptions
from meshq.errors import AddressFullError, JournalBrokenError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import encode_run

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._redistributing import MoveWatch


def makes_queues(core: Core, forward: Queue) -> bool:
    """Whether the node of a store-and-forward queue is linked, and makes queues that it is told of."""
    features = core.router.features.get(forward.number.to_bytes(8, "big"), ())
    return bool(forward.roster.consumers) and DEFINE in features


def lacking_queues(core: Core, forward: Queue) -> list[Queue]:
    """Return the durable queues here that the node of a store-and-forward queue lacks, and was not told of."""
    router, told = core.router, core.mover.transfer_places.told
    there = {
        (one.name, one.address)
        for one in router.remote(forward.number.to_bytes(8, "big"))
        if one.distance == 1 and not one.gone
    }
    return [
        queue
        for queue in router.queues.values()
        if queue.durable
        and queue.kind in (QueueKind.REGULAR, QueueKind.SUBSCRIPTION)
        and not queue.address.startswith(INTERNAL)
        and (queue.name, queue.address) not in there
        and (forward.number, queue.number) not in told
    ]


def make_queues(core: Core, forward: Queue, watch: MoveWatch) -> None:
    """Tell the node of a store-and-forward queue of the next queues that it lacks, and tell how many these are when
    that is durable."""
    places, made = core.mover.transfer_places, 0
    if not makes_queues(core, forward):
        watch.done(0)
        return
    for queue in lacking_queues(core, forward):
        if not has_room(forward) or made == limits.RUN_MESSAGES_MAX:
            break
        if places.conflicts(queue, forward):
            continue
        run = StoredRun(
            queue.address,
            encode_run([b""]),
            durable=core.durable,
            producer=bytes(IDENTITY_BYTES),
            number=1,
            stamp=0,
        )
        run.options = DeliveryOptions(0, there=places.described(queue), entry=DEFINE)
        try:
            core.ingress.place_shares(run, [Share(forward, range(1), ())], [RowOptions()], ())
        except (AddressFullError, JournalBrokenError) as error:
            watch.failed(error)
            return
        places.told[forward.number, queue.number] = None
        made += 1
    core.release_queue.when_all_is_durable(partial(watch.done, made))
    core.pending.run()
