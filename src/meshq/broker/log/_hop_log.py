"""The last runs that this node gave to other nodes, and took from them: the hops of messages that a trace tells.

Kept in memory only, a bounded number of runs: a trace is hardly ever asked for, and what is older is forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from meshq.ids import MessageId

#: Runs that are remembered, those that were given and those that were taken together.
RUNS_MAX: Final = 4_096


class Hop(NamedTuple):
    """Messages of a run that have gone from node to node.

    ``to``: whether they went to the node ``node_id``, or came from there.  ``forward``: the number of the
    store-and-forward queue that they left; 0: they came.  ``numbers``: the queues that they are for, by the numbers
    of the node that has these; ``name``: the queue that they are for, by its name.
    """

    producer: bytes
    first: int
    step: int
    rows: int
    to: bool
    node_id: str
    forward: int
    numbers: tuple[int, ...]
    name: str

    def has(self, message_id: MessageId) -> bool:
        """Whether a message is among them."""
        if message_id.producer != self.producer:
            return False
        row, rest = divmod(message_id.number - self.first, self.step)
        return not rest and 0 <= row < self.rows


class HopLog:
    """The last runs that went from node to node."""

    __slots__ = ("_runs", "forgotten")

    def __init__(self) -> None:
        self._runs: deque[Hop] = deque(maxlen=RUNS_MAX)
        #: Runs that were remembered and are not any more.
        self.forgotten: int = 0

    def add(self, hop: Hop) -> None:
        """Remember a run."""
        self.forgotten += len(self._runs) == RUNS_MAX
        self._runs.append(hop)

    def find(self, message_id: MessageId) -> list[Hop]:
        """Return the hops of a message that are remembered, the oldest first."""
        return [hop for hop in self._runs if hop.has(message_id)]
