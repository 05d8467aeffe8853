"""Handing over duplicate ids: they wait for the other node behind the messages that went before, as one entry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.ingress._redistribution import has_room
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._delivery_options import DEFINE, DeliveryOptions, QueueThere
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.records._row_options import RowOptions
from meshq.errors import AddressFullError, JournalBrokenError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import IDS_MAX, encode_id_list, encode_run

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._redistributing import MoveWatch

#: What an entry is that no queue gets, by the name of the feature which a node has that understands it.
IDS: Final = "ids"
#: Bytes of the ids of one entry, about.
_BYTES_MAX: Final = 256 * limits.KIB


def hand_over_ids(core: Core, name: str, forward: Queue, watch: MoveWatch) -> None:
    """Place the oldest duplicate ids of an address that were not handed over for the node of a store-and-forward queue,
    and tell how many when that is durable."""
    address = core.router.addresses.get(name)
    features = core.router.features.get(forward.number.to_bytes(8, "big"), ())
    if address is None or not forward.roster.consumers or IDS not in features or not has_room(forward):
        watch.done(0)
        return
    part, reached = address.duplicates.part(IDS_MAX, _BYTES_MAX)
    if not part.ids:
        watch.done(0)
        return
    content = encode_run([encode_id_list(part.ids, part.newer)])
    run = StoredRun(
        name,
        content,
        durable=part.durable,
        producer=bytes(IDENTITY_BYTES),
        number=1,
        stamp=0,
    )
    there = QueueThere(name, address.routing, "", "", "on_use" if address.auto_created else "")
    run.options = DeliveryOptions(0, there=there, entry=IDS)
    try:
        core.ingress.place_shares(run, [Share(forward, range(1), ())], [RowOptions()], ())
    except (AddressFullError, JournalBrokenError) as error:
        watch.failed(error)
        return
    for chunk, place in reached:
        chunk.given = place
    core.release_queue.when_all_is_durable(partial(watch.done, len(part.ids)))
    core.pending.run()


def drop_entries(core: Core, forward: Queue) -> None:
    """Drop the entries for a lost node: the node still has all that the entries hand over."""
    found = [
        view for view in forward.runs() if view.run.options is not None and view.run.options.entry in (IDS, DEFINE)
    ]
    for view in found:
        core.acknowledger.remove(forward, RowSpan(view, 0, len(view.states), 1), "moved")
    if found:
        take_back(core)


def take_back(core: Core) -> None:
    """Count no id, and no queue, as handed over: another node is to get them."""
    core.mover.transfer_places.told.clear()
    for address in core.router.addresses.values():
        address.duplicates.take_back()
