"""The consumers of one priority that want everything: whose turn it is, and what each of them gets of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, fitting, span_bytes
from meshq.broker.queue._run import QueueRun

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue


class ConsumerPriorityGroup:
    """Consumers of one priority.  Those with filters are only counted here; their lanes know them."""

    __slots__ = ("_turn", "choosy", "consumers", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        #: Those without filters, and how many there are with one.
        self.consumers: list[ConsumerState] = []
        self.choosy = 0
        # Whose turn it is among equal consumers.
        self._turn = 0

    def remove(self, consumer: ConsumerState) -> None:
        """A consumer without a filter leaves."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._turn:
            self._turn -= 1

    def willing(self) -> list[ConsumerState]:
        """The consumers with room, whose turn it is first."""
        consumers, turn = self.consumers, self._turn
        if len(consumers) == 1:
            return consumers if consumers[0].room() > 0 else []
        if turn:
            consumers = consumers[turn:] + consumers[:turn]
        return [consumer for consumer in consumers if consumer.room() > 0]

    def deal(
        self,
        queue: Queue,
        willing: list[ConsumerState],
        span: tuple[QueueRun, int, int],
        grants: list[tuple[ConsumerState, Dispatch]],
    ) -> int:
        """Deal rows of a run to the consumers in turn, by stride; returns how many rows were dealt."""
        view, start, stop = span
        count = min(len(willing), stop - start)
        chosen = willing[:count]
        if count == 1:
            share = chosen[0].room()
            room_bytes = chosen[0].window_bytes - chosen[0].held_bytes
        else:
            share = min(consumer.room() for consumer in chosen)
            room_bytes = min(consumer.window_bytes - consumer.held_bytes for consumer in chosen)
        rows = min(stop - start, share * count)
        size = span_bytes(view, start, start + rows)
        if size > room_bytes:
            rows = fitting(view, start, start + rows, room_bytes)
            if rows == 0:
                # The first message is larger than that room: it goes to whoever has room for it, or holds nothing,
                # as one message always fits.
                first = span_bytes(view, start, start + 1)
                chosen = [consumer for consumer in willing if consumer.fits(first)][:1]
                rows = len(chosen)
            count = len(chosen)
            size = span_bytes(view, start, start + rows) if rows else 0
        for index, consumer in enumerate(chosen[:rows]):
            grant = Dispatch(view, start + index, start + rows, count, consumer.next_tag)
            grant.size_bytes = size if grant.rows == rows else span_bytes(view, grant.start, grant.stop, count)
            queue.hold(consumer, grant)
            grants.append((consumer, grant))
        if rows:
            last = chosen[(rows - 1) % count]
            self._turn = (self.consumers.index(last) + 1) % len(self.consumers) if len(self.consumers) > 1 else 0
        return rows
