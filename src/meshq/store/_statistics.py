"""What a journal tells of itself."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class JournalStatistics:
    """A snapshot; counts are since the journal was opened."""

    state: str
    full: bool
    segments: int
    #: Bytes of the segments that count, and of the living records in them.
    bytes: int
    live_bytes: int
    live_records: int
    #: The last position given, and the last one on disk.
    last: int
    durable: int
    #: Records that are placed and not on disk.
    lag_records: int
    batches: int
    syncs: int
    #: Syncs made in the loop's own thread.
    inline_syncs: int
    sync_p50_s: float
    sync_p99_s: float
    compactions: int
    #: Bytes of torn tails that were left behind when the journal was opened.
    torn_bytes: int
    #: Sealed segments with an index; and indexes that were found at the opening, and not believed.
    indexed: int
    refused_indexes: int
    #: Sealed segments that a start took by their index, and that were not read whole since; and that are damaged.
    unproven_segments: int
    damaged_segments: int
