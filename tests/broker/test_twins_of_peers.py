"""Two nodes with one id, from a copied data directory: one of them is linked, and the other is named."""

from __future__ import annotations

from tests.broker.kit import make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import RawPeer, peer_of
from tests.broker.test_peering import all_bodies, house_with_queue, refusal

HERE, THERE = "tcp://here:1", "tcp://there:1"


def opens(peer: RawPeer, connector: str, life: bytes = b"first life of it") -> int:
    """A peer opens a link, as a life of the one node at a place."""
    return peer.open(connector=connector, instance=life)


def test_a_node_with_the_id_of_another_one_that_is_connected_is_refused_and_both_are_named() -> None:
    house = house_with_queue()
    first, second = peer_of(house), peer_of(house)
    channel = opens(first, HERE)
    opens(second, THERE, b"life of the twin")
    assert refusal(second) == "duplicate_node"
    assert f"'there' at '{THERE}' has the id of the node at '{HERE}'" in second.good_bye().text
    # The first one goes on.
    first.forward(channel, 1, b"1")
    assert all_bodies(house) == [b"1"]


def test_a_node_that_begins_anew_at_its_place_is_no_twin_of_itself() -> None:
    house = house_with_queue()
    opens(peer_of(house), HERE)
    again = peer_of(house)
    opens(again, HERE, b"its second life.")
    assert not again.all_closed()


def test_a_node_that_has_moved_is_linked_once_its_old_connection_is_lost() -> None:
    house = house_with_queue()
    old = peer_of(house)
    opens(old, HERE)
    old.drop()
    moved = peer_of(house)
    opens(moved, THERE, b"its second life.")
    assert not moved.all_closed()


def test_a_node_may_have_several_links_and_need_not_say_where_it_is() -> None:
    house = make_house(FakeLog())
    peers = [peer_of(house) for _ in range(3)]
    opens(peers[0], HERE)
    opens(peers[1], THERE)
    opens(peers[2], "", b"its second life.")
    assert not any(peer.all_closed() for peer in peers)
