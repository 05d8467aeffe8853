"""The runs of a store-and-forward queue as a link sends them."""

from __future__ import annotations

from meshq.abc import ForwardRun
from meshq.client import ForwardedRun
from meshq.wire import RunBytes


def forwarded_run(held: ForwardRun, origin: tuple[str, ...]) -> ForwardedRun:
    """Return the run that a link sends for messages of a store-and-forward queue; ``origin``: as the other node
    understands it."""
    return ForwardedRun(
        number=held.number,
        step=held.step,
        stride=held.stride,
        content=RunBytes(held.rows, held.table, 0, held.body),  # type: ignore[arg-type]
        address=held.address,
        producer=held.producer,
        message=held.message,
        stamp=held.stamp,
        durable=held.durable,
        queues=held.queues,
        topic=held.topic,
        arrival=held.arrival,
        waited=held.waited,
        origin=origin,
        former=held.former,
        queue=held.queue,
        entry=held.entry.kind,
        held=held.entry.held,
        target=held.entry.target,
    )
