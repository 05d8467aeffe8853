"""The runs of a store-and-forward queue as a link sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from meshq import limits
from meshq.abc import BodyReader, ForwardRun, LargeForwardRun
from meshq.client import ForwardedRun
from meshq.cluster._frames_plan import frames_of, rows_with_counts
from meshq.errors import MeshqError
from meshq.wire import RunBytes, body_sizes, pick, without_body

Former = Mapping[int, tuple[int, int, int]]


def forwarded_runs(held: ForwardRun, origin: tuple[str, ...], large_from: int) -> list[ForwardedRun]:
    """Return the runs that a link sends for messages of a store-and-forward queue.

    ``origin``: as the other node understands it.  ``large_from``: bodies of more bytes go in blocks.
    """
    content = RunBytes(held.rows, held.table, 0, held.body)  # type: ignore[arg-type]
    whole = _run(held, content, range(held.rows), origin)
    if isinstance(held, LargeForwardRun):
        return [whole._replace(large=held.large)]
    counted = bool(held.former())
    if held.entry.kind or (len(content.body) <= large_from and not counted):
        return [whole]
    parts = frames_of(body_sizes(content), large_from, _rows_max(held, origin) if counted else held.rows)
    if len(parts) == 1 and not parts[0][1]:
        return [whole]
    found = []
    for rows, large in parts:
        part = pick(content, rows)
        if large:
            part, body = without_body(part)
            found.append(_run(held, part, rows, origin)._replace(large=_reader(body)))
        else:
            found.append(_run(held, part, rows, origin))
    return found


def _rows_max(held: ForwardRun, origin: tuple[str, ...]) -> int:
    """Return how many messages of a run that have former counts go in one frame."""
    return rows_with_counts((held.address, *held.queue, *origin), len(held.queues))


def _run(held: ForwardRun, content: RunBytes, rows: range, origin: tuple[str, ...]) -> ForwardedRun:
    start = rows.start
    return ForwardedRun(
        number=held.number + start * held.step,
        step=held.step,
        stride=held.stride,
        content=content,
        address=held.address,
        producer=held.producer,
        message=held.message + start * held.step * held.stride,
        stamp=held.stamp,
        durable=held.durable,
        queues=held.queues,
        topic=held.topic,
        arrival=held.arrival,
        waited=held.waited,
        origin=origin,
        former=held.former if len(rows) == held.rows else partial(_former_of, held.former, rows),
        queue=held.queue,
        # What the other node has to be told before comes before the first part.
        entry=held.entry if not rows.start else held.entry.without_changes(),
    )


def _former_of(former: Callable[[], Former], rows: range) -> Former:
    """Return the former counts of a part of a run, by the rows of the part."""
    return {row - rows.start: counts for row, counts in former().items() if row in rows}


def _reader(body: bytes) -> BodyReader:
    def read(number: int, then: Callable[[bytes | MeshqError], None]) -> None:
        then(body[number * limits.LARGE_BLOCK_BYTES : (number + 1) * limits.LARGE_BLOCK_BYTES])

    return BodyReader(size_bytes=len(body), read=read)
