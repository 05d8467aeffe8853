"""Queues for tests: runs of given sizes, consumers, and what was granted as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, RowSpan
from meshq.broker.queue._delivery_options import DeliveryOptions
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.selector import parse_filter
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map, encode_run

PRODUCER = b"p" * 16


class Nowhere:
    """Takes dispatches and does nothing with these: a test looks at what the queue says."""

    principal = None

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Do nothing."""


def make_queue(*, mark: float | None = None) -> Queue:
    """A durable queue; without a mark it may grant everything."""
    queue = Queue(1, "q", "q", durable=True)
    queue.lists.high_watermark = float("inf") if mark is None else mark
    return queue


def properties(values: dict[str, Any] | None) -> Envelope:
    """What a message with these properties has besides its body."""
    if not values:
        return Envelope(KIND_PLAIN, b"", b"", b"")
    return Envelope(KIND_PLAIN | KIND_PROPERTIES, b"", b"", encode_map(values))


def make_run(
    sizes: Sequence[int], *, durable: bool = True, values: Sequence[dict[str, Any] | None] | None = None
) -> StoredRun:
    """A run of messages whose bodies have these sizes, and with these properties."""
    envelopes = None if values is None else [properties(each) for each in values]
    content = encode_run([b"x" * size for size in sizes], envelopes)
    return StoredRun("q", content, durable=durable, producer=PRODUCER, number=1, stamp=0)


def put(
    queue: Queue,
    rows: int = 1,
    *,
    size: int = 10,
    sizes: Sequence[int] = (),
    durable: bool = True,
    values: Sequence[dict[str, Any] | None] | None = None,
    groups: Sequence[str | None] = (),
    priority: int = 4,
) -> QueueRun:
    """Append a run of ``rows`` messages, or one of these sizes, or of these properties or groups."""
    run = make_run(sizes or [size] * len(values or groups or range(rows)), durable=durable, values=values)
    if groups or priority != 4:
        run.options = DeliveryOptions(0, priority, groups=tuple(groups) or None)
    view = QueueRun(run, queue.number_rows(run.content.rows))
    queue.append(view)
    return view


def join(
    queue: Queue,
    window: int = 1_000,
    window_bytes: int = 1 << 24,
    *,
    number: int = 1,
    filter: str | None = None,
    priority: int = 0,
    exclusive: bool = False,
) -> QueueConsumer:
    """A consumer of the queue."""
    consumer = QueueConsumer(queue, Nowhere(), number, window, window_bytes)
    consumer.filter = parse_filter(filter) if filter is not None else None
    consumer.priority, consumer.exclusive = priority, exclusive
    queue.add_consumer(consumer)
    return consumer


def numbers(dispatch: Dispatch | RowSpan) -> list[int]:
    """The queue's numbers of the messages of a grant or a span."""
    return [dispatch.view.first + row for row in range(dispatch.start, dispatch.stop, dispatch.step)]


def dealt(queue: Queue) -> dict[int, list[int]]:
    """Dispatch until nothing more is granted: message numbers by the consumer's number."""
    found: dict[int, list[int]] = {consumer.number: [] for consumer in queue.roster.consumers}
    while (dispatches := queue.dispatch()) or queue.pending.unfinished:
        for consumer, dispatch in dispatches:
            found[consumer.number] += numbers(dispatch)
        queue.check()
    return found


def settle(consumer: QueueConsumer, first: int, last: int, *, rejected: bool = False) -> list[int]:
    """Settle tags; returns the messages' numbers."""
    done: list[int] = []
    for span in consumer.take(first, last):
        done += numbers(span)
        if rejected:
            consumer.queue.remove(span, "rejected")
        else:
            consumer.queue.settled(span)
    return done


def give_back(consumer: QueueConsumer, first: int, last: int, *, counted: bool = True) -> list[int]:
    """Return tags; returns the messages' numbers."""
    back: list[int] = []
    for span in consumer.take(first, last):
        back += numbers(span)
        consumer.queue.give_back(span, counted=counted)
    return back


def leave(consumer: QueueConsumer, *, counted: bool = True) -> None:
    """A consumer goes, and what it holds returns."""
    for _, span in consumer.unsettled():
        consumer.queue.give_back(span, counted=counted)
    consumer.queue.remove_consumer(consumer)
