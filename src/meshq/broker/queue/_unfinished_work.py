"""The work that a queue leaves for its node: another dispatch, content to be loaded, messages that were replaced, and
branches that have to end."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._run import QueueRun


class UnfinishedWork:
    """The unfinished work of one queue; the node looks here after each dispatch."""

    __slots__ = ("emptied", "outdated", "to_fault_in", "unfinished")

    def __init__(self) -> None:
        #: Whether the last dispatch ended before all messages were put to the filters.
        self.unfinished: bool = False
        #: Paged runs that the next dispatch needs in memory.
        self.to_fault_in: dict[QueueRun, None] = {}
        #: Replaced messages that the journal must forget, each with whether no message of its run is left.
        self.outdated: list[tuple[RowSpan, bool]] = []
        #: Branches of a store-and-forward queue that have no messages left, by address with the number of this end:
        #: they end when what emptied them is durable.
        self.emptied: dict[str, int] = {}

    def fault_in(self, view: QueueRun) -> None:
        """Ask for the content of a paged run; the queue is dispatched again when it is in memory."""
        self.to_fault_in[view] = None

    def take_to_fault_in(self) -> dict[QueueRun, None]:
        """Return the runs that are needed in memory, and ask for these no more."""
        found, self.to_fault_in = self.to_fault_in, {}
        return found

    def take_outdated(self) -> list[tuple[RowSpan, bool]]:
        """Return the replaced messages, and keep them no more."""
        found, self.outdated = self.outdated, []
        return found

    def take_emptied(self) -> dict[str, int]:
        """Return the branches that have no messages left, and keep them no more."""
        found, self.emptied = self.emptied, {}
        return found
