"""The memory that unacked messages keep: the content of whole runs stays in memory for these, up to a bound.

A run with a single unacked message can't be paged.  A window says how many messages a client wants at a time, not how
much memory a node has.  So each consumer may keep as much as is still free: a single consumer gets half of the bound,
and there is always something left for another consumer.  A consumer without unacked messages always gets a message,
because nothing else would start it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic

from meshq.broker.queue._consumer_state import ConsumerState, QueueT

#: The part of a node's memory that unacked messages may keep.
UNACKED_SHARE: Final = 2
#: When such a part of the bound is free, limited consumers are served again.
FREE_SHARE: Final = 8


class UnackedMemory(Generic[QueueT]):
    """Bytes of runs that stay in memory because of unacked messages."""

    __slots__ = ("_enough", "_schedule_dispatch", "bound_bytes", "free_bytes", "limited")

    def __init__(self, bound_bytes: int, schedule_dispatch: Callable[[QueueT], None]) -> None:
        self.bound_bytes: int = bound_bytes
        #: Bytes left of the bound; below 0 when runs are large.
        self.free_bytes: int = bound_bytes
        #: Consumers without credit because of the bound; an ordered set.
        self.limited: dict[ConsumerState[QueueT], None] = {}
        self._enough = bound_bytes // FREE_SHARE
        self._schedule_dispatch = schedule_dispatch

    @property
    def used_bytes(self) -> int:
        """Bytes that unacked messages keep."""
        return self.bound_bytes - self.free_bytes

    def retry_limited(self) -> None:
        """Serve limited consumers again, if enough bytes are free."""
        if self.free_bytes >= self._enough:
            limited, self.limited = self.limited, {}
            for consumer in limited:
                if (consumer.filter is not None or consumer.levelled) and consumer.browser is None:
                    consumer.queue.credit_changed(consumer)
                self._schedule_dispatch(consumer.queue)
