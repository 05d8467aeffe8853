"""Division of a run into the frames that cross a link: each large message alone, the messages between together."""

from __future__ import annotations

from collections.abc import Sequence


def frames_of(sizes: Sequence[int], large_from: int) -> list[tuple[range, bool]]:
    """Divide the messages of a run by the sizes of their bodies; return the rows of each part, and whether it is large.

    A body of more than ``large_from`` bytes is large: it goes in blocks, and its message alone.
    """
    found: list[tuple[range, bool]] = []
    start = 0
    for row, size in enumerate(sizes):
        if size > large_from:
            if start < row:
                found.append((range(start, row), False))
            found.append((range(row, row + 1), True))
            start = row + 1
    if start < len(sizes):
        found.append((range(start, len(sizes)), False))
    return found
