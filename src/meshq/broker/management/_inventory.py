"""The inventory of a node: messages, duplicate ids and transactions that other nodes do not have yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.abc import TransferInventory
from meshq.broker.management._prepared_transfer import prepared_xids

if TYPE_CHECKING:
    from meshq.broker.core._core import Core


def inventory(core: Core) -> TransferInventory:
    """Count the contents of a node, including messages that are placed and not released yet."""
    placed: dict[str, int] = {}
    for queue, view in core.release_queue.pending():
        placed[queue.name] = placed.get(queue.name, 0) + view.live
    messages: dict[str, int] = {}
    forwarded: dict[str, int] = {}
    for queue in core.router.queues.values():
        counts = queue.counts
        held = counts.ready + counts.unacked + counts.delayed + sum(view.live for view in queue.scheduled)
        held += placed.get(queue.name, 0)
        if held:
            (forwarded if queue.forwards else messages)[queue.name] = held
    ids = {name: left for name, address in core.router.addresses.items() if (left := address.duplicates.left)}
    return TransferInventory(messages=messages, forwarded=forwarded, ids=ids, prepared=len(prepared_xids(core)))
