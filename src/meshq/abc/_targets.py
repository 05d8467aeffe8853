"""Which nodes a client may connect to, and in which order the client tries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from meshq.endpoint import Endpoint


class TopologySource(ABC):
    """The nodes that a client may connect to, as known now; they may change while the client runs."""

    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints of the nodes, each once; empty while no node is known.

        A caller may change the list that is returned, if it can be changed; the source stays as it is.
        Asked before each round of attempts: what has changed counts from the next round on, and never ends a
        connection.
        """


class TargetPolicy(ABC):
    """The order in which a client tries the nodes that it may connect to.

    Without a state that attempts change: the same question has the same answer.
    """

    @abstractmethod
    def order(self, endpoints: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> Sequence[Endpoint]:
        """Return the endpoints of one round, the first one first; each of ``endpoints`` is among them once.

        ``last``: the node that the client was connected to last, which may have gone from ``endpoints``; only that node
        can resume the session.  ``leave_last``: that node has asked its clients to leave.
        """
