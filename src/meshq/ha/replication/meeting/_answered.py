"""The end of a link on which a question was answered, and nothing more comes."""

from __future__ import annotations

from meshq.abc import ReplicaEnd
from meshq.wire import Logged


class Answered(ReplicaEnd[Logged]):
    """The end of a link that was answered, and has no more to come."""

    def heard(self, answer: Logged, first: int) -> None:
        """Take no word."""

    def drained(self) -> None:
        """Do nothing."""

    def leaving(self) -> None:
        """Do nothing."""

    def lost(self) -> None:
        """Do nothing."""
