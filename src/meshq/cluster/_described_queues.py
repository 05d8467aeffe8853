"""The queues of another node as that node describes them, within bounds.

A description costs memory and, with each message, time, and a node that has gone wrong may describe anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from meshq import limits
from meshq.abc import RemoteQueue

#: Queues of one node that are known at most, and the bytes of their names and filters.
QUEUES_MAX: Final = 2**17
DESCRIBED_BYTES_MAX: Final = 64 * limits.MIB


class DescribedQueues:
    """The known queues of one node, by number."""

    def __init__(self) -> None:
        self._by_number: dict[int, RemoteQueue] = {}
        self._of_address: Counter[str] = Counter()
        self._bytes = 0
        #: Whether all queues of the node were described in this session.
        self.complete = False
        #: Whether a durable queue of the node was known when the last session ended, or before the restart.
        self.had_durable = False

    @property
    def durable(self) -> bool:
        """Whether one of the queues outlives its node."""
        return any(queue.durable for queue in self)

    def __iter__(self) -> Iterator[RemoteQueue]:
        return iter(self._by_number.values())

    def put(self, queue: RemoteQueue) -> str:
        """Add or replace a queue; return why it is not known, and a queue of its number neither; empty: it is."""
        self.drop(queue.number)
        size = _bytes_of(queue)
        if len(self._by_number) >= QUEUES_MAX:
            return f"more than {QUEUES_MAX:,} queues"
        if self._of_address[queue.address] >= limits.ALL_QUEUES_PER_ADDRESS_MAX:
            return f"more than {limits.ALL_QUEUES_PER_ADDRESS_MAX:,} queues of the address {queue.address!r}"
        if self._bytes + size > DESCRIBED_BYTES_MAX:
            return f"queues whose names and filters are more than {DESCRIBED_BYTES_MAX:,} bytes"
        self._by_number[queue.number] = queue
        self._of_address[queue.address] += 1
        self._bytes += size
        return ""

    def drop(self, number: int) -> None:
        """Forget a queue; one that is not known is none."""
        gone = self._by_number.pop(number, None)
        if gone is None:
            return
        self._bytes -= _bytes_of(gone)
        self._of_address[gone.address] -= 1
        if not self._of_address[gone.address]:
            del self._of_address[gone.address]

    def clear(self) -> None:
        """Forget all queues."""
        self.complete = False
        self._by_number.clear()
        self._of_address.clear()
        self._bytes = 0


def _bytes_of(queue: RemoteQueue) -> int:
    texts = (queue.name, queue.address, queue.filter, queue.node_name, *queue.filters, *queue.path)
    return sum(map(len, texts))
