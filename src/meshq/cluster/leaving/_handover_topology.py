"""The topology of the links that hand over, with the descriptions of the node and of its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from meshq.abc import NodeControl, NodeDescription, ToldNode
from meshq.address import HANDOVER
from meshq.cluster.leaving._departure import Departure
from meshq.wire import COUNTER_MAX


class HandoverTopology:
    """The node and the nodes at the other ends of its links that hand over.

    There is one author of what is said of the node: its first cluster connection, if it has one.  A node that is in no
    cluster with it is not told where it is, so that nobody there dials it.

    ``clusters``: the departures of the cluster connections that are served now.  ``said``: called when the node has
    something new to say of itself.
    """

    def __init__(
        self, control: NodeControl, clusters: Callable[[], Sequence[Departure]], said: Callable[[], None]
    ) -> None:
        self._clusters = clusters
        self._said = said
        self._alone = NodeDescription(
            node_id=control.node_id,
            instance=control.instance,
            # A later life begins with a higher number than the last one ended with.
            version=min(max(control.env.wall.now_ms(), 1), COUNTER_MAX // 2),
            name=control.name,
        )
        # By URL, the last words of nodes about themselves.
        self._words: dict[str, NodeDescription] = {}
        #: The nodes that were the target in this life.
        self.targets: set[bytes] = set()

    # -- what is said

    @property
    def cluster(self) -> str:
        """The name of the cluster: that of the first cluster connection, or one that no cluster has."""
        return next((one.topology.cluster for one in self._clusters()), HANDOVER)

    @property
    def own(self) -> NodeDescription:
        """The description of the node by itself."""
        return next((one.topology.own for one in self._clusters()), self._alone)

    def described_to(self, node_id: bytes) -> NodeDescription:
        """Return the description of the node for another one."""
        own = self.own
        return own if self._shared(node_id) is not None else attrs.evolve(own, primary="", backup="", connector="")

    def connector_to(self, node_id: bytes) -> str:
        """Return the URL at which another node of the same cluster reaches this node; empty for other nodes."""
        shared = self._shared(node_id)
        return shared.topology.connector_to(node_id) if shared is not None else ""

    def _shared(self, node_id: bytes) -> Departure | None:
        first = next(iter(self._clusters()), None)
        return first if first is not None and first.topology.knows(node_id) else None

    def knows(self, node_id: bytes) -> bool:
        """Whether another node is at the end of one of the links."""
        return any(word.node_id == node_id for word in self._words.values())

    def linked_here(self, node_id: bytes) -> bool:
        """Return True: descriptions of this node go out over the links themselves."""
        return True

    def leave(self, successor: bytes = b"", target: bytes = b"") -> None:
        """Tell the other nodes that this node leaves, its successor, and to whom it hands over now."""
        if target:
            self.targets.add(target)
        own = attrs.evolve(self._alone, leaving=True, successor=successor, target=target)
        if own != self._alone:
            self._alone = attrs.evolve(own, version=own.version + 1)
        self._said()

    # -- what is heard

    def met(self, url: str, node_id: bytes, name: str) -> None:
        """Do nothing: the node at the other end has said nothing of itself yet."""

    def told(self, url: str, nodes: Sequence[ToldNode]) -> None:
        """Note the description of the node at the other end of a link by itself."""
        self._words.update((url, one.about) for one in nodes if one.distance == 0)

    def word(self, url: str) -> NodeDescription | None:
        """Return the last word of the node at a URL about itself, in its present session or the last one."""
        return self._words.get(url)

    def forget_word(self, url: str) -> None:
        """Forget the word of a node, which says it anew in another session.  Twice is silent."""
        self._words.pop(url, None)

    def parted(self, url: str, how: str) -> None:
        """Do nothing: the last word of a node stays."""
