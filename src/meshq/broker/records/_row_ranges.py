"""Rows of a run, as few ranges."""

from __future__ import annotations

from collections.abc import Sequence


def pieces(rows: Sequence[int]) -> list[range]:
    """Return rising numbers as few ranges; rows at equal distances are one range."""
    if isinstance(rows, range):
        return [rows] if rows else []
    found: list[range] = []
    at, end = 0, len(rows)
    if end and rows[-1] - rows[0] == end - 1:
        # Side by side, as nearly always.
        return [range(rows[0], rows[-1] + 1)]
    while at < end:
        if at + 1 == end:
            found.append(range(rows[at], rows[at] + 1))
            break
        step = rows[at + 1] - rows[at]
        stop = at + 2
        while stop < end and rows[stop] - rows[stop - 1] == step:
            stop += 1
        found.append(range(rows[at], rows[stop - 1] + 1, step))
        at = stop
    return found
