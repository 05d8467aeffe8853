"""The consumers of one priority: the rotation among those without filters, and the rows that each of them gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, fitting, span_bytes
from meshq.broker.queue._run import QueueRun

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue


class ConsumerPriorityGroup:
    """Consumers of one priority.  Consumers with filters are only counted here; ``FilterGroup`` has these."""

    __slots__ = ("_next_index", "consumers", "filtered_count", "priority")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        #: The consumers without filters, and the number of those with one.
        self.consumers: list[ConsumerState] = []
        self.filtered_count = 0
        # The consumer that is next in the rotation.
        self._next_index = 0

    def remove(self, consumer: ConsumerState) -> None:
        """Remove a consumer without a filter."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._next_index:
            self._next_index -= 1

    def willing(self) -> list[ConsumerState]:
        """Return the consumers with credit, in the order of the rotation."""
        consumers, next_index = self.consumers, self._next_index
        if len(consumers) == 1:
            return consumers if consumers[0].credit() > 0 else []
        if next_index:
            consumers = consumers[next_index:] + consumers[:next_index]
        return [consumer for consumer in consumers if consumer.credit() > 0]

    def deal(
        self,
        queue: Queue,
        willing: list[ConsumerState],
        span: tuple[QueueRun, int, int],
        dispatches: list[tuple[ConsumerState, Dispatch]],
    ) -> int:
        """Distribute rows of a run among the consumers by stride; return how many rows were dispatched."""
        view, start, stop = span
        count = min(len(willing), stop - start)
        chosen = willing[:count]
        if count == 1:
            share = chosen[0].credit()
            credit_bytes = chosen[0].window_bytes - chosen[0].unacked_bytes
        else:
            share = min(consumer.credit() for consumer in chosen)
            credit_bytes = min(consumer.window_bytes - consumer.unacked_bytes for consumer in chosen)
        rows = min(stop - start, share * count)
        size = span_bytes(view, start, start + rows)
        if size > credit_bytes:
            rows = fitting(view, start, start + rows, credit_bytes)
            if rows == 0:
                # The first message is larger than that credit: it goes to a consumer with enough credit, or without
                # unacked messages, as one message always fits.
                first = span_bytes(view, start, start + 1)
                chosen = [consumer for consumer in willing if consumer.fits(first)][:1]
                rows = len(chosen)
            count = len(chosen)
            size = span_bytes(view, start, start + rows) if rows else 0
        for index, consumer in enumerate(chosen[:rows]):
            dispatch = Dispatch(view, start + index, start + rows, count, consumer.next_tag)
            dispatch.size_bytes = (
                size if dispatch.rows == rows else span_bytes(view, dispatch.start, dispatch.stop, count)
            )
            queue.record_dispatch(consumer, dispatch)
            dispatches.append((consumer, dispatch))
        if rows:
            last = chosen[(rows - 1) % count]
            self._next_index = (self.consumers.index(last) + 1) % len(self.consumers) if len(self.consumers) > 1 else 0
        return rows
