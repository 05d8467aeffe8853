"""The topology of a cluster connection: descriptions of nodes come in over links, and go out to peers and clients."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from meshq.abc import LocalBroker, NodeDescription, ToldNode, TopologyMember
from meshq.cluster._dial_plan import AnnouncedNode
from meshq.cluster._settings import ClusterSettings
from meshq.cluster._topology_machine import NODES_MAX, TopologyMachine
from meshq.cluster.gate import GateFacts, HandoverGate
from meshq.concurrency import Wakeup
from meshq.endpoint import told_place
from meshq.logs import logger
from meshq.notifications import BackupChanged
from meshq.wire import COUNTER_MAX

#: Nodes of which it is kept that they hand over, at most.
GIVERS_MAX: Final = 256
#: Seconds between two looks at what was told, for each known node: what a look costs grows with these.
REST_S: Final = 0.002
_log: Final = logger("cluster")


class PeerTopology(Protocol):
    """A topology as the peer of a link sees it, with the descriptions of this node and of other nodes.

    ``cluster``: the name of the cluster that links name.
    """

    @property
    def cluster(self) -> str:
        """The name of the cluster."""

    def described_to(self, node_id: bytes) -> NodeDescription:
        """Return the description of this node for another one."""

    def connector_to(self, node_id: bytes) -> str:
        """Return the URL by which another node reaches this node; empty: it is not to."""

    def met(self, url: str, node_id: bytes, name: str) -> None:
        """Note that a link to another node has begun, which may say more of itself, or nothing."""

    def told(self, url: str, nodes: Sequence[ToldNode]) -> None:
        """Note the nodes that the node at the other end of a link knows now."""

    def word(self, url: str) -> NodeDescription | None:
        """Return the last word of the node at a URL about itself, in its present session or the last one."""

    def forget_word(self, url: str) -> None:
        """Forget the word of a node, which says it anew in another session.  Twice is silent."""

    def parted(self, url: str, how: str) -> None:
        """Note that a link to another node has ended, and how.  Twice is silent."""


class ClusterTopology(TopologyMember):
    """The cluster as one life of a node knows it.

    ``changed``: called when another node is known, or no longer.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        broker: LocalBroker,
        *,
        changed: Callable[[], None],
        warn: Callable[[str, str, str], None],
    ) -> None:
        control = broker.control
        self.cluster: str = settings.name
        # Has the nodes of this node's pair; and where this node is reached.
        self._board = control.board
        self._notifications = broker.notifications
        self._place = ""
        self._own_url = partial(settings.own_url, control)
        # Whether nodes are found in another way, too.
        self._discovers = settings.discovery is not None
        self._changed = changed
        self._warn = warn
        self._expected = partial(_is_expected, broker, settings.prefix)
        self._gate = HandoverGate()
        # Nodes that hand over, or did, and have named no successor; this life has seen them do it.
        self._givers: dict[bytes, None] = {}
        self._news = Wakeup()
        # Ends the rest between two looks: a node that leaves may soon be unable to tell it.
        self._urgent = Wakeup()
        own = NodeDescription(
            node_id=control.node_id,
            instance=control.instance,
            # A later life begins with a higher number than the last one ended with.
            version=min(max(control.env.wall.now_ms(), 1), COUNTER_MAX // 2),
            name=control.name,
            primary=told_place(settings.own_url(control)),
            group=settings.group_name or "",
            connector=settings.connector or "",
        )
        self._machine = TopologyMachine(own)
        # The nodes that are linked to this node, by their sessions here; and the last word of others, by URL.
        self._sessions: dict[int, bytes] = {}
        self._words: dict[str, NodeDescription] = {}

    @property
    def own(self) -> NodeDescription:
        """The description of the node by itself."""
        return self._machine.own

    def described_to(self, node_id: bytes) -> NodeDescription:
        """Return the description of this node by itself, the same for all."""
        return self._machine.own

    def connector_to(self, node_id: bytes) -> str:
        """Return the URL by which other nodes reach this node, the same for all."""
        return self._own_url()

    def knows(self, node_id: bytes) -> bool:
        """Whether another node is in the cluster now."""
        return self._machine.described(node_id) is not None

    def listens(self, connector: str) -> None:
        """Tell the others where this node is reached: the port that the system chooses is known only now."""
        place = told_place(connector)
        if not place:
            text = f"the connector {connector} of {self.cluster} is none that other nodes can dial"
            self._warn("connector_not_told", f"{text}: they are not told of it", connector)
        self._place = place
        self._describe()

    def _describe(self) -> None:
        """Describe where this node is reached, and the node that would take over."""
        waiting = self._board.report.waiting
        backup = told_place(waiting[0].url) if waiting else ""
        before = self._machine.own
        self._machine.describe(primary=self._place, backup=backup)
        if self._machine.own != before:
            self._compare()

    def leave(self, successor: bytes = b"", target: bytes = b"") -> None:
        """Tell the others that this node leaves, its successor, and to whom it hands over now; empty: to none."""
        self._machine.leave(successor, target)
        self._compare()
        self._urgent.wake()

    def linked_here(self, node_id: bytes) -> bool:
        """Whether a node has a link to this node now."""
        return node_id in self._sessions.values()

    def nodes(self) -> list[ToldNode]:
        """Return the known nodes, the node itself first."""
        return self._machine.nodes()

    def places(self, linked: Container[bytes], announced: Container[str]) -> list[AnnouncedNode]:
        """Return the other nodes that are told to be at a place.

        Without those that are ``linked``, by any connector, and those that are ``announced`` at just that place.
        """
        return [
            AnnouncedNode(about.node_id, about.name, (about.primary,))
            for about in self._machine.places(last=not self._discovers)
            if about.primary and about.primary not in announced and about.node_id not in linked
        ]

    # -- what links say

    def told_to(self, asker: bytes) -> Sequence[ToldNode]:
        return self._machine.told_to(asker)

    def linked(self, session: int, node: NodeDescription) -> None:
        self._sessions[session] = node.node_id
        self._machine.meet(session, node)
        self._heard((node,))

    def unlinked(self, session: int) -> None:
        self._sessions.pop(session, None)
        if self._machine.part(session, "away"):
            self._news.wake()

    def missing(self, node_id: bytes, instance: bytes) -> str:
        about, expected = self._machine.described(node_id), self._expected(node_id)
        if expected is None:
            # A node that links to this one, and is linked from nowhere here, can't have said goodbye.
            expected = node_id in self._givers
        facts = GateFacts(about=about, name=about.name if about is not None else node_id.hex(), expected=expected)
        was_open = self._gate.given_up
        why = self._gate.missing(node_id, instance, facts, trio.current_time())
        if self._gate.given_up > was_open:
            text = f"clients of node {facts.name} are let in, although its handover has not come to its end"
            self._warn("handover_unproved", text, node_id.hex())
        return why

    def met(self, url: str, node_id: bytes, name: str) -> None:
        """Note that a link to another node has begun, which may say more of itself, or nothing."""
        self._machine.meet(url, NodeDescription(node_id=node_id, name=name, primary=told_place(url)))
        self._news.wake()

    def word(self, url: str) -> NodeDescription | None:
        """Return the last word of the node at a URL about itself, in its present session or the last one."""
        return self._words.get(url)

    def forget_word(self, url: str) -> None:
        """Forget the word of a node, which says it anew in another session.  Twice is silent."""
        self._words.pop(url, None)

    def told(self, url: str, nodes: Sequence[ToldNode]) -> None:
        """Note the nodes that the node at the other end of a link knows now."""
        self._words.update((url, one.about) for one in nodes if one.distance == 0)
        self._machine.tell(url, nodes)
        self._heard(one.about for one in nodes)

    def parted(self, url: str, how: str) -> None:
        """Note that a link to another node has ended, and how.  Twice is silent."""
        if self._machine.part(url, how):
            self._news.wake()

    def _heard(self, nodes: Iterable[NodeDescription]) -> None:
        """Have the known nodes compared, at once if one of these nodes leaves."""
        if any(one.leaving for one in nodes):
            self._compare()
        self._news.wake()

    def _compare(self) -> None:
        for one in self._machine.nodes():
            if one.about.successor:
                self._gate.completed(one.about)
                self._givers.pop(one.about.node_id, None)
            elif one.about.hands_over:
                self._givers[one.about.node_id] = None
                if len(self._givers) > GIVERS_MAX:
                    del self._givers[next(iter(self._givers))]
        for change in self._machine.changes():
            about = change.node.about
            text = f"node {about.name} at {about.primary or 'no known place'}, of {self.cluster}: {change.reason}"
            _log.info("%s", text, extra={"event": f"topology_{change.reason}"})
        for about in self._machine.changed_backups():
            place = {"node_id": about.node_id.hex(), "node_name": about.name, "cluster": self.cluster}
            self._notifications.emit(BackupChanged, **place, backup=about.backup)
        if self._machine.refused:
            text = f"{self.cluster} has more than {NODES_MAX:,} nodes: {self._machine.refused} are not known here"
            self._warn("topology_full", text, self.cluster)
        self._news.wake()
        self._changed()

    async def run(self, broker: LocalBroker) -> None:
        """Tell the peers and clients of a broker the known nodes, until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is told.
        """
        broker.topologies.add(self.cluster, self)
        self._board.watch(self._describe)
        try:
            self._describe()
            while True:
                self._compare()
                self._news.clear()
                broker.topologies.changed()
                # What comes in meanwhile is told in one piece: while a cluster forms each node hears news of each other
                # one from all of them, and whoever passed on each piece at once would tell all others of each.
                with trio.move_on_after(REST_S * len(self._machine.nodes())):
                    await self._urgent.wait()
                await self._news.wait()
        finally:
            self._board.unwatch(self._describe)
            broker.topologies.drop(self.cluster)


def _is_expected(broker: LocalBroker, prefix: str, node_id: bytes) -> bool | None:
    """Return whether a node that was once linked may come back: it has not said goodbye; None: it was never linked."""
    name = f"{prefix}{node_id.hex()}"
    return next((not one.left for one in broker.peers.former(name) if one.name == name), None)
