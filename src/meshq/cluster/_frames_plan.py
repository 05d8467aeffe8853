"""Division of a run into the frames that cross a link: each large message alone, the messages between together.

Fewer go together where the header of their frame says how often each was delivered before, and how long it still waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshq import limits

#: Bytes that a header takes beside its texts; before and for each text; for the number of a queue; and for the former
#: counts of a message.
_HEADER_BYTES: Final = 400
_TEXT_BYTES: Final = 3
_QUEUE_BYTES: Final = 5
_FORMER_BYTES: Final = 16


def rows_with_counts(texts: Sequence[str], queues: int) -> int:
    """Return of how many messages a header has room for the former counts, beside texts and numbers of queues.

    Of a run with more queues than one header names, each message goes alone.
    """
    taken = _HEADER_BYTES + sum(_TEXT_BYTES + len(text.encode()) for text in texts) + _QUEUE_BYTES * queues
    return max(1, (limits.HEADER_BYTES_MAX - taken) // _FORMER_BYTES)


def frames_of(
    sizes: Sequence[int], large_from: int, rows_max: int = limits.RUN_MESSAGES_MAX
) -> list[tuple[range, bool]]:
    """Divide the messages of a run by the sizes of their bodies; return the rows of each part, and whether it is large.

    A body of more than ``large_from`` bytes is large: it goes in blocks, and its message alone.  Of the others at most
    ``rows_max`` go together.
    """
    found: list[tuple[range, bool]] = []
    start = 0
    for row, size in enumerate(sizes):
        if size > large_from:
            if start < row:
                found.append((range(start, row), False))
            found.append((range(row, row + 1), True))
            start = row + 1
        elif row - start == rows_max:
            found.append((range(start, row), False))
            start = row
    if start < len(sizes):
        found.append((range(start, len(sizes)), False))
    return found
