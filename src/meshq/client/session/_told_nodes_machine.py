"""The nodes of a cluster as told by one of its nodes: frames go in, complete lists come out."""

from __future__ import annotations

from typing import Final

from meshq.abc import ToldNode
from meshq.wire import Frame, NodeNews, header_of, told_node, violation

#: Nodes of one cluster.
_NODES_MAX: Final = 1_024


class ToldNodes:
    """The nodes of which the other side of a session tells."""

    __slots__ = ("_coming", "nodes")

    def __init__(self) -> None:
        #: What was told last; empty before the first time.  A new session replaces it when it has told all.
        self.nodes: tuple[ToldNode, ...] = ()
        self._coming: dict[bytes, ToldNode] = {}

    def renew(self) -> None:
        """Handle a new session: all is told anew."""
        self._coming = {}

    def take(self, frame: Frame) -> bool:
        """Take a frame; return whether ``nodes`` are something else now.

        Raises:
            RemoteProtocolError: nobody can say that.
        """
        news = header_of(frame, NodeNews)
        if news.gone:
            self._coming.pop(news.node_id, None)
        else:
            self._coming[news.node_id] = told_node(news)
        if len(self._coming) > _NODES_MAX:
            raise violation("bad_number", f"more than {_NODES_MAX:,} nodes in a cluster")
        if not frame.first:
            return False
        nearest = [one.distance for one in self._coming.values()]
        if frame.first != len(self._coming) or nearest.count(0) != 1:
            raise violation("bad_number", f"{frame.first} nodes, of which {len(self._coming)} were described")
        self.nodes = tuple(sorted(self._coming.values(), key=_order))
        return True


def _order(one: ToldNode) -> tuple[str, bytes]:
    """The same order at each node, so that clients of all nodes mean the same by the first one."""
    return one.about.name, one.about.node_id
