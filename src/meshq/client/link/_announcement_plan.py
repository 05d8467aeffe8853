"""When a node announces itself over a link: so often after the link has opened, so far apart."""

from __future__ import annotations

import math


class AnnouncementPlan:
    """The announcements of one link.

    ``attempts``: announcements after each opening of the link, the first one at once; ``interval_s``: seconds from one
    to the next.  An announcement that finds no connection counts as made: whoever opens the link anew begins anew.
    """

    __slots__ = ("_attempts", "_interval_s", "_left", "next_at")

    def __init__(self, attempts: int, interval_s: float) -> None:
        self._attempts = attempts
        self._interval_s = interval_s
        self._left = 0
        #: When the next announcement is due; infinite: none is.
        self.next_at: float = math.inf

    def opened(self, now: float) -> None:
        """Begin anew: the link is open in another session."""
        self._left = self._attempts
        self.next_at = now if self._left else math.inf

    def due(self, now: float) -> bool:
        """Return whether an announcement is to be made now, and count it.

        The next one is due an interval after the time of this one, however late this one is.
        """
        if now < self.next_at:
            return False
        self._left -= 1
        self.next_at = self.next_at + self._interval_s if self._left else math.inf
        return True
