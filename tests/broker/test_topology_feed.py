"""What a session is told of the nodes of its cluster, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from meshq.abc import NodeDescription, ToldNode, TopologyMember
from meshq.client.session._told_nodes_machine import ToldNodes
from meshq.wire import BY_NAME, TOPOLOGY, Attach, Attached, Authenticate, Close, FrameType, Hello, NodeNews, header_of
from tests.broker.kit import House, RawClient, make_house
from tests.broker.peers import RawPeer

A, B, C = (NodeDescription(node_id=name.encode() * 16, name=name, version=1) for name in "abc")


@attrs.define
class Known(TopologyMember):
    """A cluster that knows what a test says, and notes who has linked."""

    nodes: list[ToldNode]
    here: dict[int, NodeDescription] = attrs.field(factory=dict)
    asked: list[bytes] = attrs.field(factory=list)

    def told_to(self, asker: bytes) -> Sequence[ToldNode]:
        self.asked.append(asker)
        return self.nodes

    def linked(self, session: int, node: NodeDescription) -> None:
        self.here[session] = node

    def unlinked(self, session: int) -> None:
        self.here.pop(session, None)


class Reader(RawClient):
    """A client that wants to be told."""

    features: tuple[str, ...] = (TOPOLOGY,)
    role = "client"

    def shake(self, **attach: Any) -> Attached:
        link = self.server._link
        lossless, link.lossless = link.lossless, True
        self.send(FrameType.HELLO, Hello(oldest=1, newest=1, label="test", role=self.role, features=self.features))
        link.lossless = lossless
        self.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
        self.send(FrameType.ATTACH, Attach(**attach))
        self.attached = header_of(self.last(FrameType.ATTACHED), Attached)
        return self.attached


class ReadingPeer(Reader, RawPeer):
    """A node that wants to be told."""

    role = "peer"


class Deaf(Reader):
    """A client of an older version."""

    features = ()


def joined(house: House, *nodes: ToldNode, cluster: str = "mesh") -> Known:
    member = Known(list(nodes))
    board = house.core.settings.topologies
    board.add(cluster, member)
    board.changed()
    return member


def changed(house: House) -> None:
    house.core.settings.topologies.changed()


def told(client: RawClient) -> list[tuple[str, int, int, bool]]:
    """Name, distance, ``first`` and whether it is gone, of all that came."""
    news = [(frame, header_of(frame, NodeNews)) for frame in client.frames if frame.type is FrameType.NODE]
    client.frames.clear()
    return [(one.node_name, one.distance, frame.first, one.gone) for frame, one in news]


def test_a_client_is_told_of_all_nodes_and_then_of_those_that_are_something_else() -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A), ToldNode(about=B, distance=1))
    client = Reader(house)
    client.shake()
    assert told(client) == [("a", 0, 0, False), ("b", 1, 2, False)]
    changed(house)
    assert told(client) == []
    member.nodes = [ToldNode(about=A), ToldNode(about=attrs.evolve(B, version=2), distance=1)]
    changed(house)
    assert told(client) == [("b", 1, 2, False)]
    member.nodes = [ToldNode(about=A), ToldNode(about=C, distance=2, witness=B.node_id)]
    changed(house)
    assert told(client) == [("c", 2, 0, False), ("", 0, 2, True)]
    assert set(member.asked) == {b""}


def test_a_broker_without_a_cluster_tells_of_itself() -> None:
    client = Reader(make_house())
    client.shake()
    (only,) = told(client)
    assert only[1:] == (0, 1, False)


def test_who_has_not_named_the_feature_is_told_nothing() -> None:
    house = make_house()
    joined(house, ToldNode(about=A))
    client = Deaf(house)
    client.shake()
    assert told(client) == []
    peer = RawPeer(house)
    peer.shake()
    peer.open(cluster="mesh")
    changed(house)
    assert told(peer) == []


def test_a_session_without_a_connection_is_told_of_the_difference_when_it_is_back() -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A), ToldNode(about=B, distance=1))
    client = Reader(house)
    client.shake()
    told(client)
    client.drop()
    for node in (C, B):
        member.nodes = [ToldNode(about=A), ToldNode(about=node, distance=1)]
        changed(house)
    member.nodes.append(ToldNode(about=C, distance=1))
    changed(house)
    client.resume()
    assert told(client) == [("c", 1, 3, False)]


def test_a_node_is_told_of_its_own_cluster_on_the_channel_of_its_link_and_counts_while_it_is_connected() -> None:
    house = make_house()
    other = joined(house, ToldNode(about=C), cluster="another")
    member = joined(house, ToldNode(about=A), ToldNode(about=B, distance=1))
    peer = ReadingPeer(house)
    peer.shake()
    assert told(peer) == []
    channel = peer.open(node_id=b"b" * 16, cluster="mesh", version=7, connector="tcp://b:1?insecure=true")
    assert {frame.channel for frame in peer.frames if frame.type is FrameType.NODE} == {channel}
    assert told(peer) == [("a", 0, 0, False), ("b", 1, 2, False)]
    (about,) = member.here.values()
    assert (about.node_id, about.version, about.primary) == (b"b" * 16, 7, "tcp://b:1")
    assert (set(member.asked), other.here, other.asked) == ({b"b" * 16}, {}, [])
    peer.drop()
    assert member.here == {}
    peer.resume()
    assert list(member.here.values()) == [about]
    assert told(peer) == []


def test_of_a_node_whose_cluster_has_another_name_the_only_one_here_is_meant() -> None:
    house = make_house()
    joined(house, ToldNode(about=A))
    peer = ReadingPeer(house)
    peer.shake()
    peer.open(cluster="called otherwise there")
    assert told(peer) == [("a", 0, 1, False)]
    joined(house, ToldNode(about=C), cluster="another")
    stranger = ReadingPeer(house)
    stranger.shake()
    stranger.open(link=b"another link, 16", cluster="called otherwise there")
    assert told(stranger) == []


def test_what_is_told_in_several_frames_applies_with_the_last_one() -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A), ToldNode(about=B, distance=1))
    client = Reader(house)
    client.shake()
    nodes = ToldNodes()
    first, second = [frame for frame in client.frames if frame.type is FrameType.NODE]
    assert (nodes.take(first), nodes.nodes) == (False, ())
    assert nodes.take(second)
    assert [one.about.name for one in nodes.nodes] == ["a", "b"]
    client.frames.clear()
    member.nodes = [ToldNode(about=A)]
    changed(house)
    (gone,) = [frame for frame in client.frames if frame.type is FrameType.NODE]
    assert nodes.take(gone)
    assert [one.about.name for one in nodes.nodes] == ["a"]


def test_a_node_that_links_before_its_cluster_is_served_counts_there_from_then_on() -> None:
    house = make_house()
    other = joined(house, ToldNode(about=C), cluster="another")
    early, older = ReadingPeer(house), RawPeer(house)
    for peer, link in ((early, b"a link of 16 chr"), (older, b"another link, 16")):
        peer.shake()
        peer.open(link=link, node_id=link, cluster="mesh")
    # The only cluster so far is taken for the one that is meant.
    assert [one.node_id for one in other.here.values()] == [b"a link of 16 chr", b"another link, 16"]
    assert told(early) == [("c", 0, 1, False)]
    member = joined(house, ToldNode(about=A), ToldNode(about=B, distance=1))
    assert [one.node_id for one in member.here.values()] == [b"a link of 16 chr", b"another link, 16"]
    assert other.here == {}
    assert told(early) == [("a", 0, 0, False), ("b", 1, 0, False), ("", 0, 2, True)]
    early.drop()
    older.drop()
    assert (member.here, other.here) == ({}, {})


def announced(**changed: Any) -> NodeNews:
    said = {"node_id": b"b" * 16, "instance": b"i" * 16, "version": 8, "node_name": "b", "primary": "tcp://b:2"}
    return NodeNews(**{**said, **changed})


def test_a_node_that_announces_itself_is_known_as_it_says_now_unless_something_newer_was_known() -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A))
    peer = ReadingPeer(house)
    peer.shake()
    channel = peer.open(node_id=b"b" * 16, cluster="mesh", version=7, connector="tcp://b:1")
    for news, place in (
        (announced(leaving=True), "tcp://b:2"),
        (announced(version=7, primary="tcp://b:3"), "tcp://b:2"),
        (announced(version=8), "tcp://b:2"),
        (announced(version=9, primary="tcp://b:4"), "tcp://b:4"),
    ):
        peer.send(FrameType.NODE, news, channel=channel, first=1)
        (about,) = member.here.values()
        assert about.primary == place


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({"node_id": b"c" * 16}, 1),
        ({"instance": b"j" * 16}, 1),
        ({"primary": "tcp://0.0.0.0:1"}, 1),
        ({"node_name": "b\n"}, 1),
        ({"distance": 1}, 1),
        ({"witness": b"w" * 16}, 1),
        ({}, 0),
        ({}, 2),
    ],
)
def test_a_node_that_announces_another_one_or_nonsense_violates_the_protocol(
    changed: dict[str, Any], first: int
) -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A))
    peer = ReadingPeer(house)
    peer.shake()
    channel = peer.open(node_id=b"b" * 16, cluster="mesh", version=7, connector="tcp://b:1")
    peer.send(FrameType.NODE, announced(**changed), channel=channel, first=first)
    assert header_of(peer.last(FrameType.CLOSE), Close).code == BY_NAME["bad_header"].number
    assert [about.primary for about in member.here.values()] in ([], ["tcp://b:1"])


def test_an_announcement_on_a_channel_without_a_link_violates_the_protocol() -> None:
    house = make_house()
    joined(house, ToldNode(about=A))
    peer = ReadingPeer(house)
    peer.shake()
    channel = peer.open(node_id=b"b" * 16, cluster="mesh", version=7, connector="tcp://b:1")
    peer.send(FrameType.NODE, announced(), channel=channel + 1, first=1)
    assert header_of(peer.last(FrameType.CLOSE), Close).code == BY_NAME["bad_channel"].number


def test_what_is_announced_in_a_session_whose_link_was_opened_anew_in_another_one_means_nothing() -> None:
    house = make_house()
    member = joined(house, ToldNode(about=A))
    peers = [ReadingPeer(house), ReadingPeer(house)]
    channels = []
    for peer in peers:
        peer.shake()
        channels.append(peer.open(node_id=b"b" * 16, cluster="mesh", version=7, connector="tcp://b:1"))
    peers[0].send(FrameType.NODE, announced(), channel=channels[0], first=1)
    assert {about.primary for about in member.here.values()} == {"tcp://b:1"}
