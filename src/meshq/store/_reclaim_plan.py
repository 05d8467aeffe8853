"""Which segments may go: nothing in them is alive, and nothing kept needs what they say."""

from __future__ import annotations

from collections.abc import Mapping

from meshq.store._segment_usage_machine import SegmentBook


def removable(books: Mapping[int, SegmentBook], *, active: int, covered: float) -> list[int]:
    """The segments that can be removed together.

    ``active`` is being written.  ``covered``: records beyond this position may carry what the owner's last
    durable checkpoint does not, so even dead ones stay.
    """
    kept = dict(books)
    gone: list[int] = []
    while True:
        more = [
            number
            for number, book in kept.items()
            if number != active
            and not book.live_records
            and book.last <= covered
            and not any(needed in kept for needed in book.needs)
        ]
        if not more:
            return sorted(gone)
        for number in more:
            del kept[number]
        gone += more
