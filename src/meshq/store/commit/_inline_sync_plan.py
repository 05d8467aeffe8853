"""Whether to sync in the loop's own thread: a hop to a worker thread costs as much as a short sync does.

Only short syncs may block the loop.  So an inline sync needs a history of short syncs, a small batch, and a loop in
which no other task could run; a long sync forbids inline syncs for a pause, and each further one doubles the pause.
"""

from __future__ import annotations

from collections import deque
from typing import Final

#: Syncs that are remembered: enough for a 99th percentile.
RECENT: Final = 128
#: At that many the percentile begins to mean something.
RECENT_MIN: Final = 32
#: The percentile is worked out anew after so many syncs.
EVERY: Final = 16
#: p99 below which a sync costs the loop no more than the hop and the switch of threads would.
SHORT_S: Final = 0.000_3
#: A sync that every user of the loop notices.
LONG_S: Final = 0.050
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 600.0
#: Hashing and copying hold the loop, too: about 20 µs for this much.
BATCH_BYTES_MAX: Final = 64 * 1024


class InlineSync:
    """The durations of recent syncs, and the decision."""

    __slots__ = ("_counted", "_pause_s", "_recent", "_short", "_until")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._counted = 0
        self._short = False
        #: The next pause after a long sync.
        self._pause_s = PAUSE_S_MIN
        self._until = 0.0

    def observe(self, seconds: float, now: float) -> None:
        """Record the duration of a sync."""
        self._recent.append(seconds)
        if seconds > LONG_S:
            self._until = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        self._counted += 1
        if self._counted % EVERY == 0 and len(self._recent) >= RECENT_MIN:
            self._short = self.percentile(0.99) < SHORT_S

    def allows(self, size_bytes: int, now: float) -> bool:
        """Whether a batch of this size may be synced inline, if no other task could run."""
        return self._short and size_bytes <= BATCH_BYTES_MAX and now >= self._until

    def percentile(self, share: float) -> float:
        """Return a percentile of the recent syncs, in seconds; 0.0 without any."""
        if not self._recent:
            return 0.0
        ordered = sorted(self._recent)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
