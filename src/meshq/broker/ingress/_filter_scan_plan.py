"""The distribution of a run by the filters of queues, where no other node has a share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from meshq.broker.catalog._distribution_plan import Share, Wants, takes
from meshq.broker.records._row_ranges import pieces

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue


def sift(queues: Sequence[Queue], rows: Sequence[int], *, anycast: bool, next_index: int, wants: Wants) -> list[Share]:
    """Deal the ``rows`` of a run among queues.

    On an anycast address each message goes to the next queue in turn that takes it, on a multicast one to all that do.
    A message that no queue takes is in no share.
    """
    taken: list[list[int]] = [[] for _ in queues]
    filters = [queue.spec.filter for queue in queues]
    count = len(queues)
    for index, row in enumerate(rows):
        for step in range(count):
            place = (next_index + index + step) % count if anycast else step
            if takes(filters[place], row, wants):
                taken[place].append(row)
                if anycast:
                    break
    return [Share(queue, part, ()) for queue, found in zip(queues, taken, strict=True) for part in pieces(found)]


def placed(shares: Sequence[Share]) -> dict[int, None]:
    """Return the rows that at least one queue gets."""
    return dict.fromkeys(chain.from_iterable([share.rows for share in shares]))
