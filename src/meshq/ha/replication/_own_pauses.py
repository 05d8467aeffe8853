"""The times in which a node did not run, as it finds them on its own clock: it was stopped, or its machine was."""

from __future__ import annotations

from collections import deque
from typing import Final

#: So many pauses are kept.
KEPT: Final = 16


class OwnPauses:
    """The pauses of a node that notes again and again that it runs.

    ``period_s``: the longest time from one note to the next while it does.
    """

    def __init__(self, now: float, period_s: float) -> None:
        #: The longest time between two notes while the node runs.
        self.period_s: float = period_s
        self._noted = now
        # When each pause ended, and how long it was.
        self._pauses: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def note(self, now: float) -> None:
        """Note that the node runs."""
        pause_s = now - self._noted - self.period_s
        if pause_s > self.period_s:
            self._pauses.append((now, pause_s))
        self._noted = now

    def longest_s(self, since: float, now: float) -> float:
        """Return the seconds of the longest pause that ended after a moment, the one that ends now among them."""
        self.note(now)
        return max((pause_s for ended, pause_s in self._pauses if ended > since), default=0.0)
