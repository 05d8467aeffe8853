"""The pace of a producer: when the run that gathers is sent."""

from __future__ import annotations

from typing import Final

#: Loop turns for which a run that still grows is kept open.  A producer passes through the scheduler every 64
#: messages, so a full run takes four.
GATHER_TURNS_MAX: Final = 8


class GatherPace:
    """The looks at the run that gathers, one at the end of each loop turn."""

    __slots__ = ("_idle_turns", "_lone", "_seen", "_turns", "armed")

    def __init__(self) -> None:
        #: Whether the flusher looks at the run.
        self.armed = False
        # How long the run was at the last look; for how many turns it has been open, and for how many of them it has
        # not grown.
        self._seen = 0
        self._turns = 0
        self._idle_turns = 0
        # The last run that did not grow was a single message: an occasional message is sent at once.
        self._lone = False

    def begin(self) -> None:
        """Begin to look."""
        self.armed = True
        self._seen = self._turns = self._idle_turns = 0

    def end(self) -> None:
        """End the looks: nothing gathers."""
        self.armed = False

    def due(self, count: int) -> bool:
        """Look at a run of ``count`` messages; return whether the run is to be sent."""
        self._turns += 1
        if count == self._seen:
            self._idle_turns += 1
        else:
            # It grew, or another run was begun.  A task runs once in each turn, but anywhere in it: only a run that
            # has not grown between two more looks is not growing.
            self._idle_turns = 0
            if count < self._seen:
                self._turns = 0
            self._seen = count
        if count and (self._idle_turns >= 2 or self._turns >= GATHER_TURNS_MAX or (count == 1 and self._lone)):
            self._lone = count == 1
            return True
        return False

    @property
    def fresh(self) -> bool:
        """Whether a run may begin to gather in the next turn."""
        return self._idle_turns < 2
