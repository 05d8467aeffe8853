"""The nodes of a run, the links between them, and their faults."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from meshq.cluster import ClusterSettings
from qa.grouping_model.clockwork import Clockwork
from qa.grouping_model.fates import Fates
from qa.grouping_model.links import ModelPeer
from qa.grouping_model.node import ModelNode, NodeLife
from qa.grouping_model.queues import ModelMessage, ModelQueue

#: Seconds for which a node says that it leaves before it goes.
LEAVING_S: Final = 1.0


class ModelCluster:
    """All nodes, and the messages that were sent and consumed."""

    def __init__(self, clockwork: Clockwork, nursery: trio.Nursery, settings: ClusterSettings, places: str) -> None:
        self.clockwork = clockwork
        self._nursery = nursery
        self._settings = settings
        self._rng = clockwork.rng("cluster")
        self.nodes: dict[str, ModelNode] = {place: ModelNode(clockwork, place) for place in places}
        #: Pairs of places: from the one no frames reach the other one.
        self.cuts: set[tuple[str, str]] = set()
        #: Seconds after which a group moves that nobody here consumes; 60: never.
        self.moves_after_s: float = 60.0
        self.fates = Fates(clockwork)

    @property
    def lives(self) -> list[NodeLife]:
        """The lives of all nodes that are there."""
        return [node.life for node in self.nodes.values() if node.life is not None]

    # -- nodes

    def start(self, place: str) -> None:
        """Begin a life of a node."""
        node = self.nodes[place]
        life = NodeLife(self.clockwork, node, self._settings, self.fates, moves_after_s=self.moves_after_s)
        gives_up = self.clockwork.swarm.on("grouping.down")
        for other in self.nodes.values():
            if other is not node and not (other.gone and other.place not in node.known):
                # A setting, the same for all lives.
                peer_gives_up = gives_up and self.clockwork.rng(f"gives up/{place}{other.place}").random() < 0.5
                life.peers.append(ModelPeer(self.clockwork, life, other, self.is_cut, gives_up=peer_gives_up))
        node.life = life
        life.note("begins")
        life.has_queue()
        life.grouping.take_up()
        self._nursery.start_soon(life.run)
        self.look()

    def crash(self, place: str) -> None:
        """End the life of a node, without its records that are not durable."""
        node = self.nodes[place]
        if node.life is not None:
            node.life.note("dies")
            life, node.life = node.life, None
            life.end()
            node.journal.crash()
            self.look()

    def leave(self, place: str, *, tells: bool) -> None:
        """Have a node leave for good; ``tells``: it says so first, and hands over what it has."""
        node = self.nodes[place]
        life = node.life
        if life is None:
            return
        if tells:
            life.note("leaves")
            life.own.leaving = True
            life.grouping.note()
            self.tell(place)
        self.clockwork.at(LEAVING_S if tells else 0.0, partial(self._go, life))

    def _go(self, life: NodeLife) -> None:
        node = life.node
        if not life.alive:
            return
        life.note("has left")
        node.gone = True
        node.life = None
        messages = [row.message for row in node.queue.waiting] if node.queue is not None else []
        messages += [message for forward in node.forwards.values() for message in forward.empty()]
        life.end()
        node.queue = None
        node.journal.close()
        for other in self.lives:
            for peer in other.peers:
                if peer.node_id == node.node_id and peer.connected:
                    self.clockwork.at(self._rng.random() * 0.1, partial(peer.gone, "left"))
        target = next(iter(self.lives), None)
        if target is None:
            self.fates.deleted(messages)
        for message in self.fates.missing(messages):
            # Whoever took over sends them on; another node may have had some of them already.
            target.route(message) if target is not None else None

    def look(self) -> None:
        """Have all links be looked at."""
        for life in self.lives:
            for peer in life.peers:
                peer.look()

    def tell(self, place: str) -> None:
        """Send the description of a node to all others."""
        for life in self.lives:
            for peer in life.peers:
                if peer.label == f"the node {place}":
                    peer.tell()

    # -- links

    def is_cut(self, here: str, there: str) -> bool:
        """Whether no frames of a link arrive."""
        return (here, there) in self.cuts

    def cut(self, here: str, there: str) -> None:
        """Cut the link from one node to another one."""
        self.clockwork.note(f"{here}-{there} is cut")
        self.cuts.add((here, there))
        self.look()

    def mend(self, here: str, there: str) -> None:
        """Let frames arrive again."""
        if (here, there) in self.cuts:
            self.clockwork.note(f"{here}-{there} is whole")
            self.cuts.discard((here, there))
            self.look()

    # -- queues

    def consume(self, place: str, *, on: bool) -> None:
        """Let the consumer of a node come or go."""
        life = self.nodes[place].life
        if life is not None:
            life.consume(on=on)
            self.tell(place)

    def queue(self, place: str, *, on: bool) -> None:
        """Make the queue of a node, or delete it with all its messages."""
        node = self.nodes[place]
        life = node.life
        if life is None or on == (node.queue is not None):
            return
        life.note("gets a queue" if on else "deletes its queue")
        if on:
            node.queue = ModelQueue()
        elif node.queue is not None:
            self.fates.deleted(row.message for row in node.queue.waiting)
            node.queue.roster.claim = None
            node.queue = None
        life.has_queue()
        life.grouping.note()
        self.tell(place)

    def send(self, place: str, group: str) -> ModelMessage | None:
        """Send a message at a node."""
        life = self.nodes[place].life
        if life is None or life.own.leaving:
            return None
        message = self.fates.send(group, place)
        life.note(f"is sent {message.uid} of {group}")
        life.route(message)
        return message
