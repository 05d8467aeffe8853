"""The client's calls for connectors: ranges of a queue, read by tasks that own no cursor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshq import limits
from meshq.client.receive._consumer import Consumer, Numbers
from meshq.client.receive._cursor_records import SequenceHole, all_holes, check_range

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
        client._context, queue, window=4_000, window_bytes=16 * limits.MIB, auto=True, browse=True, numbers=numbers
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
