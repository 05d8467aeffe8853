"""The segments that may be removed: no live record is in them, and no kept segment needs their tombstones."""

from __future__ import annotations

from collections.abc import Mapping

from meshq.store.segments._segment_usage_machine import SegmentRecords


def removable(segments: Mapping[int, SegmentRecords], *, active: int, covered: float) -> list[int]:
    """Return the segments that can be removed together.

    ``active`` is being written.  ``covered``: records beyond this position may hold soft state that the owner's last
    durable checkpoint does not, so even deleted records stay.
    """
    kept = dict(segments)
    gone: list[int] = []
    while True:
        more = [
            number
            for number, segment in kept.items()
            if number != active
            and not segment.live_records
            and segment.last <= covered
            and not any(needed in kept for needed in segment.needs)
        ]
        if not more:
            return sorted(gone)
        for number in more:
            del kept[number]
        gone += more
