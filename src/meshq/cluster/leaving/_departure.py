"""The departure of a node from its cluster: the nodes that may take over, and the news for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from meshq.abc import HandoverTarget, LocalBroker, NodeDescription, StoreAndForwardQueue
from meshq.cluster._peer import Peer
from meshq.concurrency import ChangeSignal
from meshq.endpoint import told_place
from meshq.errors import MeshqError

#: States of a node that does not come back by itself.
GONE = ("left", "down")


@attrs.frozen(kw_only=True)
class Successor:
    """Another node of a cluster, a possible successor of this node.

    ``state``: as in ``PeerStatistics``.  ``leaving``: it takes nothing in any more.  ``group``: its
    group's name; empty: none, or it has not said so yet.  ``place``: where it says that it is, for clients; empty:
    nowhere that others can dial.  ``link``: what waits here for it.
    """

    node_id: bytes
    name: str
    url: str
    state: str
    leaving: bool
    group: str
    place: str
    link: StoreAndForwardQueue

    @property
    def ready(self) -> bool:
        """Whether messages go there now."""
        return self.state == "linked" and not self.leaving

    @property
    def label(self) -> str:
        """The node in errors and logs."""
        return f"node {self.name} at {self.url.partition('?')[0]}"


class LeavingTopology(Protocol):
    """The topology that hears of a departure."""

    @property
    def cluster(self) -> str:
        """The name of the cluster."""

    @property
    def own(self) -> NodeDescription:
        """The description of the node by itself."""

    def connector_to(self, node_id: bytes) -> str:
        """Return the URL by which another node reaches this node; empty: it is not to."""

    def knows(self, node_id: bytes) -> bool:
        """Whether another node is in the cluster now."""

    def linked_here(self, node_id: bytes) -> bool:
        """Whether another node is told of a departure."""

    def leave(self, successor: bytes = b"", target: bytes = b"") -> None:
        """Tell the others that this node leaves, its successor, and to whom it hands over now; empty: to none."""


class Departure:
    """The part of a cluster in the departure of its node, for a life of the node."""

    def __init__(
        self,
        broker: LocalBroker,
        topology: LeavingTopology,
        peers: Callable[[], Sequence[Peer]],
        changed: ChangeSignal,
        warn: Callable[[str, str, str], None],
    ) -> None:
        self.broker: LocalBroker = broker
        self.topology: LeavingTopology = topology
        self._peers = peers
        #: Told when a node or a queue elsewhere has changed.
        self.changed: ChangeSignal = changed
        #: Warns once in a while: event, text and cause.
        self.warn: Callable[[str, str, str], None] = warn
        #: The loop of the node.
        self.loop: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        #: Set when the node serves no more.
        self.ended: trio.Event = trio.Event()

    def successors(self) -> list[Successor]:
        """Return the other nodes that were ever reached, in the order of their connectors."""
        return [
            Successor(
                node_id=peer.node_id,
                name=peer.name,
                url=peer.url,
                state=peer.state,
                leaving=(word := peer.word) is not None and word.leaving,
                group=word.group if word is not None else "",
                place=word.primary if word is not None and word.primary else told_place(peer.url),
                link=peer.forwarding,
            )
            for peer in self._peers()
            if peer.forwarding is not None and peer.state != "spare"
        ]

    def place(self, name: str) -> str:
        """Return the URL of a connector of the broker, or the text itself."""
        return self.broker.control.connectors.get(name, name)

    def unheard(self) -> list[str]:
        """Return the nodes that may come back and are not linked to this node now.

        These have not heard how far their messages are stored here.
        """
        return [
            one.label
            for one in self.successors()
            if one.state not in GONE and not self.topology.linked_here(one.node_id)
        ]

    def hand_over_to(self, one: Successor) -> None:
        """Tell the others that this node leaves, and hands over to another one, where its clients are to go."""
        self.topology.leave(target=one.node_id)
        self.broker.topologies.hand_over(HandoverTarget(node_id=one.node_id, name=one.name, place=one.place))

    def handed_over_to(self, one: Successor) -> None:
        """Tell the others that the handover has come to its end."""
        self.topology.leave(successor=one.node_id, target=one.node_id)

    def break_off(self) -> None:
        """Tell the others that the handover is broken off."""
        self.topology.leave()
        self.broker.topologies.hand_over(None)

    async def give_back(self, one: Successor) -> int:
        """Route the messages anew that wait for a node which has stored none of them; return how many.

        Checkpoint: always.
        Cancellation: it goes on.
        Raises:
            AddressFullError: the disk is full; what is left waits on.
            NotActiveError: the node stops.
        """
        over, found = trio.Event(), [0]
        errors: list[MeshqError] = []

        def done(moved: int) -> None:
            found[0] = moved
            over.set()

        def failed(error: MeshqError) -> None:
            errors.append(error)
            over.set()

        self.broker.peers.give_back(one.link, done, failed)
        await over.wait()
        for error in errors:
            raise error
        return found[0]
