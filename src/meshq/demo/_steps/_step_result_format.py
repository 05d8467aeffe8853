"""The results of the steps of a run, as lines, with the missing evidence of each step."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class KillResult:
    """The result of one kill: the messages in flight, and the time without a broker."""

    when: str
    #: The node that it took.
    node: int
    #: Messages that consumers had been handed and that were not confirmed as acknowledged.
    delivered_unacknowledged: int
    #: Messages that waited in its queue, at least.
    ready: int
    #: Messages that waited for it on the producer's node.
    waiting: int
    #: Messages that the producer had given to its client and that were not confirmed.
    sent_unconfirmed: int
    #: From the kill until the broker was ready again.
    seconds_down: float
    #: Where other nodes found it before and after; None: each was told where it is, once.
    places: tuple[str, str] | None = None

    @property
    def moved_to(self) -> str:
        """The end of a line about it."""
        return f" at another place, {self.places[1]}" if self.places is not None else ""

    @property
    def differences(self) -> list[str]:
        """The missing evidence, a sentence each."""
        if self.places is None or self.places[0] != self.places[1]:
            return []
        return [f"node {self.node} came back at the same place, {self.places[1]}"]


@attrs.frozen(kw_only=True)
class MoveResult:
    """The result of a move of a node's consumers to another one."""

    node: int
    to_node: int
    consumers: int
    #: Messages on the node when they left it, at least; messages that went from there to consumers elsewhere.
    stranded: int
    redistributed: int
    #: From the order to move until nothing was left there.
    seconds: float

    @property
    def whose(self) -> str:
        """The consumers in a sentence."""
        return "the consumer" if self.consumers == 1 else f"{self.consumers} consumers"

    @property
    def what(self) -> str:
        """The messages in a sentence."""
        return f"{self.stranded:,} stranded, {self.redistributed:,} redistributed in {self.seconds:.1f} s"

    @property
    def differences(self) -> list[str]:
        """The missing evidence, a sentence each."""
        if self.stranded and self.redistributed >= self.stranded:
            return []
        return [f"of {self.stranded:,} messages stranded on node {self.node} {self.redistributed:,} were redistributed"]


@attrs.frozen(kw_only=True)
class LeaveResult:
    """The result of the departure of a node for good."""

    node: int
    #: The node that has taken over.
    target: int
    #: Messages that its consumers held, and messages that were ready, when it began.
    delivered: int
    ready: int
    #: Messages that it held then, how many of them went to that node, and how many were large; the others went to
    #: consumers on other nodes.
    held: int
    moved: int
    large: int
    #: Prepared transactions that went along, with how many flights; whether it was found and committed at the target.
    prepared: int
    prepared_flights: int
    decided: bool
    #: Where its consumers went on.
    went_on_at: tuple[int, ...]
    #: Messages that it had left at the end.
    left: int
    #: From the order to leave until the transaction was decided.
    seconds: float

    @property
    def what(self) -> str:
        """The messages in a sentence."""
        decided = "committed there" if self.decided else "not found there"
        nodes = ", ".join(str(node) for node in self.went_on_at)
        return (
            f"{self.held:,} messages, {self.delivered:,} of them delivered and not acknowledged, {self.large:,} large, "
            f"{self.moved:,} to node {self.target}; {self.prepared} prepared transaction of {self.prepared_flights:,} "
            f"flights, {decided}; consumers went on at node {nodes}; {self.seconds:.1f} s"
        )

    @property
    def differences(self) -> list[str]:
        """The missing evidence, a sentence each."""
        wrong = {
            f"node {self.node} left without a backlog": not self.ready or self.held < self.delivered + self.ready,
            f"nothing of node {self.node} went to node {self.target}": not self.moved,
            f"node {self.node} left without a large message": not self.large,
            f"node {self.node} left without a prepared transaction": not self.prepared,
            f"node {self.node} left with {self.left:,} messages that no other node has": self.left > 0,
            f"the prepared transaction was not found at node {self.target}": not self.decided,
            f"no consumer of node {self.node} went on at another node": not self.went_on_at,
        }
        return [text for text, is_so in wrong.items() if is_so]
