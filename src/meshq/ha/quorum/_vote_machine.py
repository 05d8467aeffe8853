"""A vote of other nodes, with its answers and its decision, and the times of several votes."""

from __future__ import annotations

import attrs


class Vote:
    """A vote in which other nodes answer yes or no.

    ``needed`` answers of yes decide for it; the vote is lost as soon as the voters that are left can't reach that
    number.  The decision is final: answers that come later change nothing.  A voter counts once, by its first answer.
    """

    __slots__ = ("_answers", "_decision", "needed", "others")

    def __init__(self, needed: int, others: int) -> None:
        #: The number of nodes that are asked.
        self.others: int = others
        #: The number of answers of yes that decide for it.
        self.needed: int = needed
        self._answers: dict[str, bool] = {}
        self._decision: bool | None = None
        self._decide()

    def __repr__(self) -> str:
        return f"<Vote {self.yes} of {self.needed} needed, {self.others} asked, decision={self._decision}>"

    @property
    def yes(self) -> int:
        """The number of answers of yes that have counted."""
        return sum(self._answers.values())

    @property
    def decision(self) -> bool | None:
        """True or False once it is decided; None before."""
        return self._decision

    def add(self, voter: str, yes: bool) -> bool | None:
        """Count the answer of a voter, unless the vote is decided or the voter was counted; return the decision."""
        if self._decision is None and voter not in self._answers:
            self._answers[voter] = yes
            self._decide()
        return self._decision

    def close(self) -> bool:
        """End the vote: a missing answer counts as no.  Return the decision."""
        if self._decision is None:
            self._decision = False
        return self._decision

    def _decide(self) -> None:
        left = self.others - len(self._answers)
        if self.yes >= self.needed:
            self._decision = True
        elif self.yes + left < self.needed:
            self._decision = False


@attrs.define
class VoteSchedule:
    """The times of the votes about one loss: the first one at once, then some more with a pause between two votes.

    ``retries_left``: votes that may follow the one that is next.  ``next_at``: when that one begins; None: no more.
    """

    retries_left: float
    wait_s: float
    cut_s: float
    next_at: float | None

    def begin(self, now: float) -> float:
        """Begin the vote that is next; return the moment at which it is cut."""
        return now + self.cut_s

    def lost(self, now: float) -> float | None:
        """Note at ``now`` that a vote was lost; return when the next one begins, or None after the last one."""
        if self.retries_left < 1:
            self.next_at = None
        else:
            self.retries_left -= 1
            self.next_at = now + self.wait_s
        return self.next_at
