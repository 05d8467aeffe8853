"""What consumers hold: the content of whole runs stays in memory for it, and there is a bound on that.

A run of which a consumer has a single message can't be paged.  A window says how many messages a client wants at a
time, not how much memory a node has.  So each consumer may hold as much as is free besides: whoever is alone gets half
of the bound, and however many come there is something left for the next one.  One that holds nothing always gets
something, for nothing else would set it going.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_state import ConsumerState
    from meshq.broker.queue._queue_machine import Queue

#: The part of a node's memory that consumers may hold.
UNACKED_SHARE: Final = 2
#: When such a part of that is free, consumers that had no room are looked at again.
FREE_SHARE: Final = 8


class UnackedMemory:
    """Bytes of runs that stay in memory because consumers hold messages of them."""

    __slots__ = ("_enough", "_touch", "bound_bytes", "free_bytes", "limited")

    def __init__(self, bound_bytes: int, touch: Callable[[Queue], None]) -> None:
        self.bound_bytes = bound_bytes
        #: What is left of the bound; below 0 where the runs are large.
        self.free_bytes = bound_bytes
        #: Consumers that found no room; an ordered set.
        self.limited: dict[ConsumerState, None] = {}
        self._enough = bound_bytes // FREE_SHARE
        self._touch = touch

    @property
    def used_bytes(self) -> int:
        """Bytes that are held."""
        return self.bound_bytes - self.free_bytes

    def look_again(self) -> None:
        """Some of it is free again: those who found no room are looked at if that is enough."""
        if self.free_bytes >= self._enough:
            limited, self.limited = self.limited, {}
            for consumer in limited:
                if consumer.filter is not None and consumer.browser is None:
                    consumer.queue.room_changed(consumer)
                self._touch(consumer.queue)
