"""The client's calls for connectors: ranges of a queue, read by tasks that own no cursor."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from meshq import limits
from meshq.address import parse_place
from meshq.client.receive._consumer import Consumer, Numbers
from meshq.client.receive._cursor_records import SequenceHole, all_holes, check_range
from meshq.client.transactions._stage import Stage
from meshq.errors import SettingsError
from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_ID,
    KIND_PROPERTIES,
    PRIORITY_SHIFT,
    encode_bodies,
    encode_columns,
)

if TYPE_CHECKING:
    from meshq.client._client import Client


def range_reader(client: Client, queue: str, lo: int, hi: int, *, cursor: str = "", fence: int = 0) -> Consumer:
    """Create a reader of the sequences of a queue from ``lo`` up to, and without, ``hi``, to be used as ``async with``.

    ``cursor``, ``fence``: it ends when the owner of this cursor who has that fence has lost it.

    Raises:
        SettingsError: these are no sequences.
    """
    check_range(lo, hi)
    numbers = Numbers(lo, hi, cursor, fence)
    return Consumer(
        client._context, queue, window=16_000, window_bytes=16 * limits.MIB, auto=True, browse=True, numbers=numbers
    )


async def holes_between(client: Client, queue: str, lo: int, hi: int, pages: float = math.inf) -> list[SequenceHole]:
    """Return the sequences of a queue from ``lo`` up to, and without, ``hi`` that no message has, and why.

    ``pages``: ask no more often than that, and return the first ones.

    Checkpoint: always.  Cancellation: nothing has changed.
    Raises:
        SettingsError: these are no sequences.
        MeshqError: the broker has refused, or there is no answer.
    """
    check_range(lo, hi)
    return await all_holes(lambda at: client._context.ask("holes", queue=queue, lo=at, hi=hi), lo, pages=pages)


async def send_bodies(stage: Stage, address: str, offsets: Sequence[int], data: memoryview) -> None:
    """Send durable messages into a stage, whose bodies lie side by side in ``data``: nothing is done for each.

    ``offsets``: where each begins, and behind these where the last one ends.

    Checkpoint: when it has to wait, and at least every 64th run.
    Cancellation: some of the messages were taken, and the others were not.
    Raises:
        SettingsError: a body is too large; no message was taken.
        MeshqError: as ``stage.send``.
    """
    parse_place(address)
    # Of bodies that are small together each is small.
    largest = offsets[-1] - offsets[0]
    if largest > limits.MESSAGE_BYTES_MAX:
        largest = max(map(int.__sub__, offsets[1:], offsets[:-1]))
    if largest > limits.MESSAGE_BYTES_MAX:
        raise SettingsError(
            "body", None, f"at most {limits.MESSAGE_BYTES_MAX} bytes", shown=f"<a body of {largest} bytes>"
        )
    start, count = 0, len(offsets) - 1
    while start < count:
        fits = bisect_right(offsets, offsets[start] + limits.RUN_BYTES_TARGET) - 1
        stop = min(count, start + limits.RUN_MESSAGES_MAX, max(start + 1, fits))
        part = offsets[start : stop + 1]
        start, first = stop, part[0]
        ends = array("I", [end - first for end in part[1:]])
        await stage._send_run(address, encode_bodies(ends, bytes(data[first : part[-1]])))


class KindBits:
    """The bits of the kind of a message, for callers that make ``RowColumns``."""

    ID: Final = KIND_ID
    HEADERS: Final = KIND_HEADERS
    PROPERTIES: Final = KIND_PROPERTIES
    #: The headers name a time to live, a delay or a group.
    CONTROL: Final = KIND_CONTROL
    #: Where the priority begins.
    PRIORITY_SHIFT: Final = PRIORITY_SHIFT


class RowColumns(NamedTuple):
    """Durable messages for one address whose parts lie side by side in ``data``.

    ``kinds``: of each message the kind of its row in a run.  ``ends``: where duplicate id, headers, properties and body
    of each end, counted from ``data``, where the first message begins at ``begin``.  These are numbers of four bytes.
    """

    address: str
    rows: int
    kinds: memoryview
    ends: tuple[memoryview, ...]
    data: memoryview
    begin: int


async def send_columns(stage: Stage, columns: RowColumns) -> None:
    """Send encoded messages into a stage, from columns that the caller has checked.

    Checkpoint: when it has to wait, and at least every 64th run.
    Cancellation: some of the messages were taken, and the others were not.
    Raises:
        SettingsError: the address is none; no message was taken.
        MeshqError: as ``stage.send``.
    """
    address, count, kinds, ends, data, first = columns
    parse_place(address)
    bodies, start = ends[-1], 0
    while start < count:
        fits = bisect_right(bodies, first + limits.RUN_BYTES_TARGET)
        stop = min(count, start + limits.RUN_MESSAGES_MAX, max(start + 1, fits))
        last = bodies[stop - 1]
        parts = [bytes(part[start:stop]) for part in (kinds, *ends)]
        await stage._send_run(address, encode_columns(parts[0], parts[1:], first, bytes(data[first:last])))
        start, first = stop, last
