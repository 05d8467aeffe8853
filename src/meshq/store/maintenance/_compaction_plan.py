"""Which segments to compact, and when: most space freed for least copying."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.limits import COMPACT_LIVE_PERCENT, COMPACT_SEGMENTS_MIN, SECTOR_BYTES, SEGMENT_HEADER_BYTES

#: A victim must free at least half of itself: otherwise the copying costs more space and time than it frees.
NEEDED_PERCENT_MAX = 50
#: A nearly empty segment keeps one record of a drained queue, a high watermark, a tombstone.
NEARLY_EMPTY_NEEDED_PERCENT_MAX = 5


@attrs.frozen
class CompactionCandidate:
    """A sealed segment: its length, and the bytes that a compaction would keep."""

    number: int
    length: int
    needed: int


def victims(candidates: Sequence[CompactionCandidate], *, budget_bytes: int, eager: bool = False) -> list[int]:
    """Choose the segments to compact now, with at most ``budget_bytes`` of copies; usually none.

    ``eager`` takes every segment that frees anything, for tests of the mechanism.
    """
    length = sum(candidate.length for candidate in candidates)
    needed = sum(candidate.needed for candidate in candidates)
    if not eager and (len(candidates) < COMPACT_SEGMENTS_MIN or needed * 100 >= length * COMPACT_LIVE_PERCENT):
        return []
    percent = 100 if eager else NEEDED_PERCENT_MAX
    chosen: list[int] = []
    copied = 0
    for candidate in sorted(candidates, key=lambda one: (one.needed / one.length, one.number)):
        if candidate.needed * 100 >= candidate.length * percent or copied + candidate.needed > budget_bytes:
            break
        copied += candidate.needed
        chosen.append(candidate.number)
    return sorted(chosen)


def nearly_empty(candidates: Sequence[CompactionCandidate], *, segment_bytes: int) -> list[int]:
    """Choose the segments that are almost empty, if they free at least half a segment; usually none.

    Their number does not matter: at most one segment is copied.  Under load most of them become empty without help.
    """
    chosen: list[CompactionCandidate] = []
    needed = 0
    for one in candidates:
        if one.needed * 100 < one.length * NEARLY_EMPTY_NEEDED_PERCENT_MAX and needed + one.needed <= segment_bytes:
            needed += one.needed
            chosen.append(one)
    # A copy has a header and ends with a sector.
    freed = sum(one.length for one in chosen) - (SEGMENT_HEADER_BYTES + needed + 2 * SECTOR_BYTES)
    return sorted(one.number for one in chosen) if freed >= segment_bytes // 2 else []


def densest_copies(candidates: Sequence[CompactionCandidate], *, budget_bytes: int) -> list[int]:
    """Choose the segments to compact on a full disk, with at most ``budget_bytes`` of copies; none if that frees
    nothing.

    Records that were written in many small batches take much more space than their own bytes.
    """
    chosen: list[CompactionCandidate] = []
    copied = SEGMENT_HEADER_BYTES
    for candidate in sorted(candidates, key=lambda one: (one.needed - one.length, one.number)):
        if copied + candidate.needed <= budget_bytes:
            copied += candidate.needed
            chosen.append(candidate)
    # A copy has a header and ends with a sector.
    freed = sum(candidate.length for candidate in chosen) - (copied + 2 * SECTOR_BYTES)
    return sorted(candidate.number for candidate in chosen) if freed >= SEGMENT_HEADER_BYTES else []
