"""What a consumer is sent: the frame for a grant."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import ConsumerState, Dispatch
from meshq.wire import FLAG_DURABLE, FLAG_LARGE, Deliver, Frame, FrameType, RunBytes, cut, deliver_header, pick


def granted(grant: Dispatch, *, whole: bool = False) -> RunBytes:
    """The messages of a grant; ``whole``: as a run whose offsets begin at 0."""
    content = grant.view.run.content
    if grant.rows == content.rows:
        return content
    if whole:
        return pick(content, range(grant.start, grant.stop, grant.step))
    if grant.step == 1:
        return cut(content, grant.start, grant.stop)
    if grant.rows == 1:
        return cut(content, grant.start, grant.start + 1)
    return pick(content, range(grant.start, grant.stop, grant.step))


def delivery(consumer: ConsumerState, grant: Dispatch) -> Frame:
    """The DELIVER frame for a grant."""
    view = grant.view
    run = view.run
    content = run.content if grant.rows == run.content.rows else granted(grant)
    counts: tuple[int, ...] = ()
    if view.maybe > grant.start or view.counts:
        counts = _delivery_counts(grant)
    number, sequence = run.number + grant.start * run.number_step, view.first + grant.start
    traits, body = run.traits, run.body
    if counts or content.base or grant.step != 1 or run.number_step != 1 or traits is not None:
        header = Deliver(
            address=run.address,
            producer=run.producer,
            number=number,
            sequence=sequence,
            step=grant.step,
            stride=run.number_step,
            base=content.base,
            counts=counts,
            arrival=traits.arrival if traits is not None else 0,
            origin=tuple(traits.origin) if traits is not None and traits.origin is not None else (),
            size=body.size_bytes if body is not None else 0,
        ).encode()
    else:
        header = deliver_header(run.address, run.producer, number, sequence)
    return Frame(
        FrameType.DELIVER,
        flags=(FLAG_DURABLE if run.durable else 0) | (FLAG_LARGE if body is not None else 0),
        channel=consumer.number,
        first=grant.tag,
        stamp=run.stamp,
        header=header,
        count=content.rows,
        table=content.table,
        body=content.body,
    )


def _delivery_counts(grant: Dispatch) -> tuple[int, ...]:
    """Index and delivery count in turn, for the rows that may have been delivered before."""
    view = grant.view
    counts: list[int] = []
    for index, row in enumerate(range(grant.start, grant.stop, grant.step)):
        before = view.deliveries(row)
        if before:
            counts += (index, before + 1)
    return tuple(counts)
