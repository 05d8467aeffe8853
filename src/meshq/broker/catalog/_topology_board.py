"""The topologies of a broker, and the sessions to which they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from meshq.abc import HandoverTarget, NodeDescription, ToldNode, Topologies, TopologyMember


class TopologyReader(Protocol):
    """A session that is told who is in a cluster."""

    def changed(self) -> None:
        """Compare the nodes that were told with those known now."""


class TopologyBoard(Topologies):
    """The topologies of a broker, and their readers."""

    __slots__ = ("_alone", "_members", "_readers", "_run_pending", "target")

    def __init__(self) -> None:
        self._members: dict[str, TopologyMember] = {}
        self._readers: dict[TopologyReader, None] = {}
        #: Where refused clients are to go; None: nowhere.
        self.target: HandoverTarget | None = None
        # Set by ``open``.
        self._alone: ToldNode
        self._run_pending: Callable[[], None]

    def open(self, alone: NodeDescription, run_pending: Callable[[], None]) -> None:
        """Begin.  ``alone``: the broker itself, of which clients are told when it is in no cluster."""
        self._alone = ToldNode(about=alone)
        self._run_pending = run_pending

    def add(self, cluster: str, member: TopologyMember) -> None:
        self._members[cluster] = member

    def drop(self, cluster: str) -> None:
        self._members.pop(cluster, None)

    def changed(self) -> None:
        for reader in self._readers:
            reader.changed()
        self._run_pending()

    def hand_over(self, target: HandoverTarget | None) -> None:
        self.target = target

    def missing(self, node_id: bytes, instance: bytes) -> str:
        """Return why a client may not come yet that another node has sent away; empty: nothing is missing."""
        found = (member.missing(node_id, instance) for member in self._members.values())
        return next(filter(None, found), "")

    def read(self, reader: TopologyReader) -> None:
        """Tell a session of changes from now on."""
        self._readers[reader] = None

    def leave(self, reader: TopologyReader) -> None:
        """Tell a session nothing more.  Twice is silent."""
        self._readers.pop(reader, None)

    def member(self, cluster: str) -> TopologyMember | None:
        """Return the cluster of a peer: the one of that name, or the only one; None: it has none here."""
        if cluster in self._members or len(self._members) != 1:
            return self._members.get(cluster)
        return next(iter(self._members.values()))

    def told_to_clients(self) -> Sequence[ToldNode]:
        """Return the nodes for clients: the first cluster, or the broker alone."""
        first = next(iter(self._members.values()), None)
        return (self._alone,) if first is None else first.told_to(b"")
