"""Why a node accepts nothing new, and why no work goes on."""

from __future__ import annotations

from meshq.errors import NotActiveError


class Closing:
    """The end of a node's service: why nothing new is accepted, and why no work goes on.

    Invariant: if no work goes on, nothing new is accepted.
    """

    __slots__ = ("stopping", "why")

    def __init__(self) -> None:
        #: Why nothing new is accepted; None while the node takes in messages.
        self.why: str | None = None
        #: Why no work goes on: nothing is delivered, forwarded or moved; None while the node is active.
        self.stopping: str | None = None

    def begin(self, why: str) -> None:
        """Accept nothing new from now on, and have no work go on."""
        self.why = self.stopping = why

    def take_nothing_in(self, why: str) -> None:
        """Accept nothing new from now on; work goes on, and other nodes are told how far their messages are stored."""
        if self.why is None:
            self.why = why

    def check(self) -> None:
        """Check that the node accepts new messages and transactions.

        Raises:
            NotActiveError: the node accepts nothing new.
        """
        if self.why is not None:
            raise NotActiveError(self.why)

    def check_running(self) -> None:
        """Check that work goes on.

        Raises:
            NotActiveError: the node stops.
        """
        if self.stopping is not None:
            raise NotActiveError(self.stopping)
