"""The lease of a node: a bound on the time for which the node acts without a look at its store."""

from __future__ import annotations


class Lease:
    """The time for which a node may act without having looked at its store again.

    It is counted from before a renewal began, so that a renewal that takes long gives less time, never more.  A lease
    that has run out is lost for good, whatever renewals say later: they may have begun before another node acted.
    """

    __slots__ = ("_lost", "seconds", "until")

    def __init__(self, seconds: float, began: float) -> None:
        #: For how long a renewal holds.
        self.seconds: float = seconds
        #: The moment from which the node may not act any more.
        self.until: float = began + seconds
        self._lost = False

    def holds(self, now: float) -> bool:
        """Whether the node may act at a moment; from the first moment at which it may not, it never may."""
        if now >= self.until:
            self._lost = True
        return not self._lost

    def renew(self, began: float, now: float) -> bool:
        """Note a renewal that began at one moment and has succeeded at another; return whether the lease holds."""
        if self.holds(now):
            self.until = max(self.until, began + self.seconds)
        return self.holds(now)

    def end(self) -> None:
        """Give the lease up: the node acts no more."""
        self._lost = True
