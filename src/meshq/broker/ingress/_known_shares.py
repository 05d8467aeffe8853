"""The distribution of a run by verdicts of filters that are known already.

A commit places thousands of runs in one step, perhaps for hundreds of queues each: only queues that take a message of
the run cost any time.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._verdicts import bits_of
from meshq.broker.records._row_ranges import pieces


def deal_known(
    run: StoredRun, queues: Sequence[Queue], rows: Sequence[int], *, anycast: bool, next_index: int
) -> list[Share] | None:
    """Return the shares that ``sift`` would make; None if a verdict is not known."""
    whole = (1 << run.content.rows) - 1
    wanted = whole if len(rows) == run.content.rows else bits_of(rows)
    taking: dict[int, int] = {}
    unknown: frozenset[int] | None = None
    for verdicts in run.verdicts:
        if wanted & ~verdicts.asked:
            return None
        places = verdicts.filters.places(queues)
        for place, bits in verdicts.accepted().items():
            for position in places.by_filter.get(place, ()):
                taking[position] = bits & wanted
        taking.update(dict.fromkeys(places.all_taking, wanted))
        unknown = places.unknown if unknown is None else unknown & places.unknown
    if unknown or unknown is None:
        return None
    if anycast:
        taking = _rotate(taking, rows, len(queues), next_index)
    return [
        Share(queues[position], part, ())
        for position in sorted(taking)
        if taking[position]
        for part in pieces(rows if taking[position] == wanted else [row for row in rows if taking[position] >> row & 1])
    ]


def _rotate(taking: dict[int, int], rows: Sequence[int], count: int, next_index: int) -> dict[int, int]:
    """Of several queues that take a message the next one in turn gets it."""
    takers: dict[int, int] = {}
    for position, bits in taking.items():
        for row in rows:
            if bits >> row & 1:
                takers[row] = takers.get(row, 0) | 1 << position
    dealt: dict[int, int] = {}
    for index, row in enumerate(rows):
        able = takers.get(row, 0)
        if able:
            first = (next_index + index) % count
            behind = able >> first
            position = first + _lowest(behind) if behind else _lowest(able)
            dealt[position] = dealt.get(position, 0) | 1 << row
    return dealt


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
