"""The DELIVER frame of a dispatch."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch
from meshq.wire import FLAG_DURABLE, FLAG_LARGE, Deliver, Frame, FrameType, RunBytes, cut, deliver_header, pick


def dispatched_run(dispatch: Dispatch, *, whole: bool = False) -> RunBytes:
    """The messages of a dispatch; ``whole``: as a run whose offsets begin at 0."""
    content = dispatch.view.run.content
    if dispatch.rows == content.rows:
        return content
    if whole:
        return pick(content, range(dispatch.start, dispatch.stop, dispatch.step))
    if dispatch.step == 1:
        return cut(content, dispatch.start, dispatch.stop)
    if dispatch.rows == 1:
        return cut(content, dispatch.start, dispatch.start + 1)
    return pick(content, range(dispatch.start, dispatch.stop, dispatch.step))


def delivery(consumer: AnyConsumer, dispatch: Dispatch) -> Frame:
    """The DELIVER frame of a dispatch."""
    view = dispatch.view
    run = view.run
    content = run.content if dispatch.rows == run.content.rows else dispatched_run(dispatch)
    counts: tuple[int, ...] = ()
    if view.maybe > dispatch.start or view.counts:
        counts = _delivery_counts(dispatch)
    number, sequence = run.number + dispatch.start * run.number_step, view.first + dispatch.start
    options, body = run.options, run.body
    if counts or content.base or dispatch.step != 1 or run.number_step != 1 or options is not None:
        header = Deliver(
            address=run.address,
            producer=run.producer,
            number=number,
            sequence=sequence,
            step=dispatch.step,
            stride=run.number_step,
            base=content.base,
            counts=counts,
            arrival=options.arrival if options is not None else 0,
            origin=tuple(options.origin) if options is not None and options.origin is not None else (),
            size=body.size_bytes if body is not None else 0,
        ).encode()
    else:
        header = deliver_header(run.address, run.producer, number, sequence)
    return Frame(
        FrameType.DELIVER,
        flags=(FLAG_DURABLE if run.durable else 0) | (FLAG_LARGE if body is not None else 0),
        channel=consumer.number,
        first=dispatch.tag,
        stamp=run.stamp,
        header=header,
        count=content.rows,
        table=content.table,
        body=content.body,
    )


def _delivery_counts(dispatch: Dispatch) -> tuple[int, ...]:
    """Index and delivery count in turn, for the rows that may have been delivered before."""
    view = dispatch.view
    counts: list[int] = []
    for index, row in enumerate(range(dispatch.start, dispatch.stop, dispatch.step)):
        before = view.deliveries(row)
        if before:
            counts += (index, before + 1)
    return tuple(counts)
