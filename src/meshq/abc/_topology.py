"""The nodes of a cluster, as these nodes tell each other and their clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class NodeDescription:
    """A node of a cluster, as the node describes itself.

    ``instance``: this life of the node.  ``version``: rises with each change that the node makes to its description,
    over its lives, too; only the node itself changes it.  0: the node is older, and was described by a node that is
    linked with it.  ``primary``, ``backup``: where it and its backup are reached, URLs without options; empty: nowhere
    that is known, and no backup.  ``leaving``: it takes nothing in any more, and hands over what it has.
    ``successor``: the node that has all of it now; empty: none has.  ``group``: the name of the nodes that hand over to
    each other; empty: none.  ``target``: the node to which it hands over now; empty: to none.
    ``connector``: the name of the connector at ``primary``; empty: it has none.
    """

    node_id: bytes
    instance: bytes = b""
    version: int = 0
    name: str = ""
    primary: str = ""
    backup: str = ""
    leaving: bool = False
    successor: bytes = b""
    group: str = ""
    target: bytes = b""
    connector: str = ""

    @property
    def hands_over(self) -> bool:
        """Whether the node hands over its contents now, and has not come to the end of that."""
        return self.leaving and bool(self.target) and not self.successor


@attrs.frozen(kw_only=True)
class ToldNode:
    """A node, as another node tells of it.

    ``distance``: 0 for the node that speaks, 1 for a node that is linked with it, more for one of which it was told.
    ``witness``: the node that is linked with a node of which the speaker was told; else empty.
    """

    about: NodeDescription
    distance: int = 0
    witness: bytes = b""


@attrs.frozen(kw_only=True)
class HandoverTarget:
    """The target of a node's handover, to which the clients of that node go.

    ``place``: a URL without options; empty: none that others can dial.
    """

    node_id: bytes
    name: str = ""
    place: str = ""


class TopologyMember(ABC):
    """A service that knows who is in its cluster."""

    @abstractmethod
    def told_to(self, asker: bytes) -> Sequence[ToldNode]:
        """Return the nodes of which another node, or a client (``asker`` empty), is told: the speaker first."""

    @abstractmethod
    def linked(self, session: int, node: NodeDescription) -> None:
        """Note that another node has opened a link to this node, in a session; or that its session goes on."""

    @abstractmethod
    def unlinked(self, session: int) -> None:
        """Note that a session of another node has lost its connection, or has ended.  Twice is silent."""

    def missing(self, node_id: bytes, instance: bytes) -> str:
        """Return the reason to keep clients of another node out, of which that node, in one of its lives, has told that
        it leaves; empty: they may come."""
        return ""


class Topologies(ABC):
    """The topologies of a broker, one for each of its clusters; clients are told the first one."""

    @abstractmethod
    def add(self, cluster: str, member: TopologyMember) -> None:
        """Tell the peers of a cluster the nodes that ``member`` knows; clients, too, if the cluster is the first."""

    @abstractmethod
    def drop(self, cluster: str) -> None:
        """Tell nothing more of a cluster."""

    @abstractmethod
    def changed(self) -> None:
        """Compare the nodes that peers and clients were told with those known now, and tell the differences."""

    @abstractmethod
    def hand_over(self, target: HandoverTarget | None) -> None:
        """Set where clients are to go that the broker refuses from now on; None: nowhere."""
