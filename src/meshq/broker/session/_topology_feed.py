"""The nodes of a cluster as told to a session, compared with those known now."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.abc import NodeDescription, ToldNode, TopologyMember
from meshq.broker.catalog._topology_board import TopologyBoard
from meshq.broker.session._session_stream import SessionStream
from meshq.endpoint import told_place
from meshq.wire import (
    TOPOLOGY,
    Frame,
    FrameType,
    LinkOpening,
    NodeNews,
    header_of,
    node_news,
    told_node,
    violation,
)


class TopologyFeed:
    """The description of nodes for one session: all of them first, then changes.

    A session without a link is told nothing, and what differs when it has a link again.
    """

    __slots__ = (
        "_board",
        "_channel",
        "_cluster",
        "_connector",
        "_counted",
        "_feature",
        "_peer",
        "_reads",
        "_session",
        "_stream",
        "_told",
        "_wanted",
    )

    def __init__(self, board: TopologyBoard, stream: SessionStream, session: int) -> None:
        self._board = board
        self._stream = stream
        self._session = session
        self._feature = False
        # Whether the session is told at all, a node from its link on; and whether something may have changed.
        self._reads = False
        self._wanted = False
        self._channel = 0
        # The node that has linked, its cluster and its connector; None: the session is a client's.
        self._peer: NodeDescription | None = None
        self._cluster = ""
        self._connector = ""
        # Where the peer counts as linked now.
        self._counted: TopologyMember | None = None
        self._told: dict[bytes, ToldNode] = {}

    def welcome(self, role: str, features: Sequence[str]) -> None:
        """Begin, if the other side has named the feature: for a client now, for a node when it links."""
        self._feature = TOPOLOGY in features
        if role != "peer" and self._feature and not self._reads:
            self._reads = True
            self._board.read(self)
            self.changed()

    def linked(self, opening: LinkOpening, channel: int) -> None:
        """Begin to tell a node that has linked, on the channel of its link."""
        self._peer = None
        self._compare_links()
        self._cluster, self._channel, self._told = opening.cluster, channel, {}
        self._connector = opening.connector
        self._peer = NodeDescription(
            node_id=opening.node_id,
            instance=opening.instance,
            version=opening.version,
            name=opening.node_name,
            primary=told_place(opening.connector),
            backup=told_place(opening.backup),
        )
        self._reads = self._feature
        # Its cluster may be served only later.
        self._board.read(self)
        self.changed()

    def announced(self, frame: Frame) -> tuple[bytes, str]:
        """Take an announcement of the peer by itself, and return its id and the connector that its link has named.

        What the peer says now counts, unless something newer was known.

        Raises:
            RemoteProtocolError: it speaks of another node, or of another life of the peer.
        """
        said, known = told_node(header_of(frame, NodeNews)), self._peer
        about = said.about
        whole = frame.first == 1 and not said.distance and not said.witness
        if known is None or not whole or (about.node_id, about.instance) != (known.node_id, known.instance):
            raise violation("bad_header", "an announcement of a node by another one, or of more than one")
        if about.version >= known.version:
            self._peer = about
            if self._counted is not None:
                self._counted.linked(self._session, about)
        return about.node_id, self._connector

    @property
    def _member(self) -> TopologyMember | None:
        return self._board.member(self._cluster)

    def attached(self) -> None:
        """Go on over a link."""
        self.changed()

    def detached(self) -> None:
        """Wait for a link."""
        self._compare_links()

    def end(self) -> None:
        """End with the session."""
        self._peer = None
        self._compare_links()
        self._board.leave(self)

    def _compare_links(self) -> None:
        """Have a peer that is connected count in its cluster, and in no other one."""
        peer = self._peer if self._stream.link is not None else None
        member = self._member if peer is not None else None
        if member is self._counted:
            return
        before, self._counted = self._counted, member
        if before is not None:
            before.unlinked(self._session)
        if member is not None and peer is not None:
            member.linked(self._session, peer)

    def changed(self) -> None:
        """Compare the links now, and the known nodes with the told ones at the end of the pass."""
        self._compare_links()
        if self._reads and self._stream.link is not None:
            self._wanted = True
            self._stream.schedule_flush()

    def flush(self) -> None:
        """Tell the differences; the last frame ends them."""
        wanted, self._wanted = self._wanted, False
        if not wanted or self._stream.link is None:
            return
        if self._peer is None:
            nodes: Sequence[ToldNode] = self._board.told_to_clients()
        elif (member := self._member) is not None:
            nodes = member.told_to(self._peer.node_id)
        else:
            return
        now = {one.about.node_id: one for one in nodes}
        news = [node_news(one) for node_id, one in now.items() if self._told.get(node_id) != one]
        news += [NodeNews(node_id=node_id, gone=True) for node_id in self._told if node_id not in now]
        self._told = now
        for left, one in zip(range(len(news) - 1, -1, -1), news, strict=True):
            first = 0 if left else len(now)
            self._stream.put(Frame(FrameType.NODE, channel=self._channel, first=first, header=one.encode()))
