"""The topology of a cluster connection: descriptions of nodes come in over links, and go out to peers and clients."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from meshq.abc import LocalBroker, NodeControl, NodeDescription, ToldNode, TopologyMember
from meshq.cluster._dial_plan import AnnouncedNode
from meshq.cluster._topology_machine import NODES_MAX, TopologyMachine
from meshq.concurrency import Wakeup
from meshq.endpoint import told_place
from meshq.logs import logger
from meshq.wire import COUNTER_MAX

_log: Final = logger("cluster")


class ClusterTopology(TopologyMember):
    """The cluster as one life of a node knows it.

    ``connector``: the URL that other nodes are told.  ``discovers``: nodes are found in another way, too.
    ``group``: the group of nodes that scale down to each other; empty: none.
    ``changed``: called when another node is known, or no longer.
    """

    def __init__(
        self,
        cluster: str,
        control: NodeControl,
        connector: str,
        *,
        discovers: bool,
        group: str = "",
        changed: Callable[[], None],
        warn: Callable[[str, str, str], None],
    ) -> None:
        self._cluster = cluster
        self._discovers = discovers
        self._changed = changed
        self._warn = warn
        self._news = Wakeup()
        own = NodeDescription(
            node_id=control.node_id,
            instance=control.instance,
            # A later life begins with a higher number than the last one ended with.
            version=min(max(control.env.wall.now_ms(), 1), COUNTER_MAX // 2),
            name=control.name,
            primary=told_place(connector),
            group=group,
        )
        self._machine = TopologyMachine(own)
        # The nodes that are linked to this node, by their sessions here; and the last word of others, by URL.
        self._sessions: dict[int, bytes] = {}
        self._words: dict[str, NodeDescription] = {}

    @property
    def own(self) -> NodeDescription:
        """The description of the node by itself."""
        return self._machine.own

    def listens(self, connector: str) -> None:
        """Tell the others where this node is reached: the port that the system chooses is known only now."""
        place = told_place(connector)
        if not place:
            text = f"the connector {connector} of {self._cluster} is none that other nodes can dial"
            self._warn("connector_not_told", f"{text}: they are not told of it", connector)
        self._machine.describe(primary=place)
        self._compare()

    def leave(self, successor: bytes) -> None:
        """Tell the others that this node leaves, and its successor; empty: there is none yet."""
        self._machine.leave(successor)
        self._compare()

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
        self._compare()

    def unlinked(self, session: int) -> None:
        self._sessions.pop(session, None)
        if self._machine.part(session, "away"):
            self._compare()

    def met(self, url: str, node_id: bytes, name: str) -> None:
        """Note that a link to another node has begun, which may say more of itself, or nothing."""
        self._machine.meet(url, NodeDescription(node_id=node_id, name=name, primary=told_place(url)))
        self._compare()

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
        self._compare()

    def parted(self, url: str, how: str) -> None:
        """Note that a link to another node has ended, and how.  Twice is silent."""
        if self._machine.part(url, how):
            self._compare()

    def _compare(self) -> None:
        for change in self._machine.changes():
            about = change.node.about
            text = f"node {about.name} at {about.primary or 'no known place'}, of {self._cluster}: {change.reason}"
            _log.info("%s", text, extra={"event": f"topology_{change.reason}"})
        if self._machine.refused:
            text = f"{self._cluster} has more than {NODES_MAX:,} nodes: {self._machine.refused} are not known here"
            self._warn("topology_full", text, self._cluster)
        self._news.wake()
        self._changed()

    async def run(self, broker: LocalBroker) -> None:
        """Tell the peers and clients of a broker the known nodes, until cancelled.

        Checkpoint: always.
        Cancellation: nothing more is told.
        """
        broker.topologies.add(self._cluster, self)
        try:
            while True:
                self._news.clear()
                broker.topologies.changed()
                await self._news.wait()
        finally:
            broker.topologies.drop(self._cluster)
