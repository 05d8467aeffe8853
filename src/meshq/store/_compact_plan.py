"""When to compact, and which segments: those that give back most room for least copying."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.limits import COMPACT_LIVE_PERCENT, COMPACT_SEGMENTS_MIN

#: A victim must give back at least half of itself: otherwise the copying costs more room and time than it frees.
VICTIM_NEEDED_PERCENT_MAX = 50


@attrs.frozen
class Candidate:
    """A sealed segment: its length, and how much of that a compaction would keep."""

    number: int
    length: int
    needed: int


def victims(candidates: Sequence[Candidate], *, budget_bytes: int, eager: bool = False) -> list[int]:
    """The segments to compact now, in no more than ``budget_bytes`` of copies; usually none.

    ``eager`` takes whatever frees anything, for tests of the mechanism.
    """
    length = sum(candidate.length for candidate in candidates)
    needed = sum(candidate.needed for candidate in candidates)
    if not eager and (len(candidates) < COMPACT_SEGMENTS_MIN or needed * 100 >= length * COMPACT_LIVE_PERCENT):
        return []
    percent = 100 if eager else VICTIM_NEEDED_PERCENT_MAX
    chosen: list[int] = []
    copied = 0
    for candidate in sorted(candidates, key=lambda one: (one.needed / one.length, one.number)):
        if candidate.needed * 100 >= candidate.length * percent or copied + candidate.needed > budget_bytes:
            break
        copied += candidate.needed
        chosen.append(candidate.number)
    return sorted(chosen)
