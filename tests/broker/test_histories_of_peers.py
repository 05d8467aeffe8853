"""What another node may say of the messages that it hands over, and of what is no message."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from meshq.wire import (
    FLAG_DURABLE,
    FLAG_LAST,
    Forward,
    FrameType,
    PreparedHead,
    encode_id_list,
    encode_prepared_head,
    encode_run,
)
from tests.broker.kit import PRODUCER, House
from tests.broker.peers import RawPeer, peer_of
from tests.broker.test_peering import all_bodies, house_with_queue, refusal

COUNT, WAIT = struct.Struct("<HHH"), struct.Struct("<HQ")
QUEUE = ("made", "anycast", "", "", "durable")


def forward(peer: RawPeer, channel: int, *bodies: bytes, first: int = 1, address: str = "q", **about: Any) -> None:
    """Forward messages with a history."""
    run = encode_run(list(bodies or (b"x", b"y")))
    about.setdefault("queues", () if about.get("queue") else (1,))
    header = Forward(address=address, producer=PRODUCER, number=1, **about)
    rows = {"count": run.rows, "table": run.table, "body": run.body}
    peer.send(FrameType.FORWARD, header, flags=FLAG_DURABLE, channel=channel, first=first, **rows)


def counts(house: House) -> list[tuple[int, int]]:
    (view,) = house.core.router.queues["q"].all_runs()
    return [(view.deliveries(row), view.returns(row)) for row in range(len(view.states))]


@pytest.mark.parametrize(
    "about",
    [
        {"counts": b"12345"},
        {"counts": COUNT.pack(2, 1, 0)},
        {"counts": COUNT.pack(1, 1, 0) + COUNT.pack(0, 1, 0)},
        {"counts": COUNT.pack(0, 1, 0) * 2},
        {"counts": COUNT.pack(0, 0, 0)},
        {"counts": COUNT.pack(0, 1, 2)},
        {"due": b"123"},
        {"due": WAIT.pack(2, 5)},
        {"due": WAIT.pack(0, 2**60)},
        {"queues": ()},
        {"queue": QUEUE, "queues": (1,)},
        {"queue": QUEUE[:4]},
        {"queue": ("", *QUEUE[1:])},
        {"queue": ("$meshq.cluster.mesh.there", *QUEUE[1:])},
        {"queue": ("$temporary.a", *QUEUE[1:])},
        {"queue": ("made", "elsewhere", "", "", "")},
        {"queue": ("made", "anycast", "colour = ", "", "")},
        {"queue": ("q::made", "anycast", "", "shared", "")},
        {"queue": ("made", "multicast", "", "shared", "")},
        {"queue": ("q::made", "multicast", "", "borrowed", "")},
        {"queue": QUEUE, "entry": "something else"},
        {"queue": QUEUE, "entry": "ids"},
        {"queues": (1,), "entry": "ids"},
    ],
)
def test_a_history_that_no_message_has_is_refused(about: dict[str, Any]) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    forward(peer, peer.open(), **about)
    assert refusal(peer) == "bad_header"
    assert all_bodies(house) == [] and "made" not in house.core.router.queues


@pytest.mark.parametrize(
    "body",
    [b"", b"\0" * 6, encode_id_list([b"a", b"a"], 0), encode_id_list([b"a", b""], 0), encode_id_list([b"a"], 0) + b"x"],
)
def test_a_list_of_ids_that_is_none_is_refused(body: bytes) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    forward(peer, peer.open(), body, queue=("q", "anycast", "", "", ""), entry="ids")
    assert refusal(peer) == "bad_header"
    assert not house.core.router.addresses["q"].duplicates.known()


def test_counts_stay_with_their_messages() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    forward(peer, peer.open(), b"x", b"y", b"z", counts=COUNT.pack(0, 3, 2) + COUNT.pack(2, 1, 0))
    assert counts(house) == [(3, 2), (0, 0), (1, 0)]
    assert house.core.router.queues["q"].counts.ready == 3


def test_a_message_that_still_waits_is_delayed() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    forward(peer, peer.open(), counts=COUNT.pack(1, 1, 1), due=WAIT.pack(1, 5_000))
    queue = house.core.router.queues["q"]
    assert (queue.counts.ready, queue.counts.delayed) == (1, 1)


def test_ids_are_remembered_for_an_address_that_is_made() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    body = encode_id_list([b"a", b"b"], 7)
    forward(peer, channel, body, address="there", queue=("there", "multicast", "", "", ""), entry="ids")
    address = house.core.router.addresses["there"]
    assert address.routing == "multicast" and address.duplicates.known() == [b"a", b"b"]
    assert all_bodies(house) == []
    # The next number of the link is taken.
    forward(peer, channel, first=2)
    assert all_bodies(house) == [b"x", b"y"]


@pytest.mark.parametrize(
    "about",
    [
        {"entry": "prepared_sends", "held": b"x", "queues": ()},
        {"entry": "define", "queue": QUEUE},
    ],
)
def test_what_is_no_message_has_no_large_body(about: dict[str, Any]) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    peer.channels += 1
    peer.calls += 1
    flags = FLAG_DURABLE | FLAG_LAST
    peer.send(FrameType.BLOCK, flags=flags, channel=peer.channels, first=peer.calls, body=bytes(300))
    forward(peer, channel, b"", upload=peer.channels, **about)
    assert refusal(peer) == "bad_header"
    assert "made" not in house.core.router.queues


@pytest.mark.parametrize(("name", "routing"), [("q", "multicast"), ("other", "anycast")])
def test_a_queue_that_can_not_be_made_refuses_the_frame_and_stores_nothing(name: str, routing: str) -> None:
    house = house_with_queue()
    house.core.definitions.create_queue("other", address="elsewhere", routing="anycast", durable=True)
    peer = peer_of(house)
    forward(peer, peer.open(), queue=(name, routing, "", "", "durable"))
    assert refusal(peer)
    assert all_bodies(house) == []
    assert house.core.ingress.links == {}


def test_a_transaction_is_begun_once_before_its_end() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    head = encode_prepared_head(PreparedHead(1, ""))
    for first, entry in enumerate(("prepared", "prepared_end", "prepared"), 1):
        forward(peer, channel, head, first=first, entry=entry, held=b"x", queues=())
    assert not peer.all_closed()
    forward(peer, channel, head, first=4, entry="prepared", held=b"x", queues=())
    assert refusal(peer) == "bad_header"
    assert len(house.core.transactions.two_phase.arriving) == 1
