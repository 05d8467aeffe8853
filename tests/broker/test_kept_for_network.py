"""The queue that keeps messages of a topic for another broker of the network, in raw frames and over a restart."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import UsageError, limits
from meshq.address import NETWORK_KEPT
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._network_copies import note_recovered, onward_queues
from meshq.ids import NETWORK_MARK
from meshq.limits import NETWORK_HOPS_MAX
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, KIND_HEADERS, KIND_ID, Answer, Consume, FrameType, header_of
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house

NEXT, FAR = "b" * 32, "c" * 32
NAME = f"{NETWORK_KEPT}to-b.t@{'a' * 32}"
USAGE = BY_NAME["usage"].number


def keep(client: RawClient, **about: Any) -> int:
    """Open a network consumer whose messages are kept."""
    client.channels += 1
    about = {
        "routes": (NEXT,), "hops": 2, "subscription": "shared", "durable": True, "name": NAME, **about,
    }  # fmt: skip
    header = Consume(**{"queue": "t", "window": 10, "window_bytes": 1 << 20, **about})
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client.channels


def rows(house: House, asker: str = "f" * 32) -> list[tuple[Any, ...]]:
    """What a broker that asks is told of the topic: the ways, the filter, and whether messages are kept."""
    named = house.client().call("network_demand", node_id=asker, known=b"", after=0) or {}
    found = []
    while f"address{len(found)}" in named:
        found.append(tuple(named[f"{name}{len(found)}"] for name in ("ways", "filter", "durable")))
    return found


def test_the_queue_stays_and_is_demand_with_its_ways_while_its_consumer_is_away_and_after_a_start() -> None:
    log, here = FakeLog(), (b"n" * 16).hex()
    house = make_house(log)
    client = house.client()
    channel = keep(client, routes=(f"{FAR}/{NEXT}",), filter="a = 1")
    told = [(f"{FAR}/{NEXT}/{here}", "a = 1", True)]
    assert rows(house) == told
    client.leave(channel)
    assert rows(house) == told and rows(house, NEXT) == []
    # It is opened with other ways, then these change while it is open.
    channel = keep(client, routes=(NEXT,))
    client.call("network_routes", channel=channel, routes=f"{FAR}/{NEXT}")
    client.leave(channel)
    told = [(f"{FAR}/{NEXT}/{here}", "", True)]
    assert rows(house) == told
    house.rest()
    again = House(make_core(log.after_crash(), records=log.recovered()))
    assert rows(again) == told
    address = again.core.router.addresses["t"]
    assert [one.name for one in onward_queues(address, KIND_ID | KIND_HEADERS)] == [f"t::{NAME}"]


def test_what_the_queue_takes_follows_the_broker_behind_the_link() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.leave(keep(client))
    queue = house.core.router.queues[f"t::{NAME}"]
    assert f"'%{NEXT}%'" in queue.spec.filter_text and "AMQBrokerHops < 2" in queue.spec.filter_text
    client.leave(keep(client, routes=(FAR,), hops=3))
    assert f"'%{FAR}%'" in queue.spec.filter_text and "AMQBrokerHops < 3" in queue.spec.filter_text
    assert house.core.router.queues[f"t::{NAME}"] is queue


def test_only_a_network_consumer_has_such_a_queue_and_no_other_one() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="t", address="t", routing="multicast")
    keep(client, routes=(), hops=0)
    assert client.code == USAGE
    keep(client, filter="no condition (")
    assert client.code not in (0, USAGE)
    for wrong in ({"name": "mine"}, {"subscription": "single"}, {"durable": False}):
        other = house.client()
        keep(other, **wrong)
        assert other.closed, wrong
    assert list(house.core.router.queues) == ["t"]
    client.leave(keep(client))
    # Who may manage deletes it, as what a connector that is gone has left.
    client.call("delete_queue", name=f"t::{NAME}")
    assert client.code == 0 and list(house.core.router.queues) == ["t"]


def test_how_far_messages_from_before_a_start_had_come_is_not_known() -> None:
    ids = [NETWORK_MARK + b"1", b"other", NETWORK_MARK + b"2"]
    for routing, expected in (("multicast", [ids[0], ids[2]]), ("anycast", [])):
        address = Address("t", routing, AddressSettings(), lambda *_: {})
        note_recovered(address, ids)
        assert address.hops == dict.fromkeys(expected, NETWORK_HOPS_MAX + 1)


def test_routes_that_its_definition_has_no_room_for_are_refused_and_what_was_written_can_be_read() -> None:
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    topic, name = "t" * 500, f"{NETWORK_KEPT}{'c' * 60}.{'x' * 300}@{'a' * 32}"
    wanted = "a IN ({})".format(",".join(f"'{one:04}'" for one in range(240)))
    channel = keep(client, queue=topic, name=name, filter=wanted)
    ids = [f"{one:032x}" for one in range(1, 100)]
    long = ["/".join([*ids[at : at + 14], NEXT]) for at in range(0, 84, 14)]
    client.call("network_routes", channel=channel, routes=" ".join(long))
    assert client.code == USAGE
    keep(client, queue="other", routes=tuple(long), hops=16)
    assert client.code == USAGE and "other" not in house.core.router.addresses
    (queue,) = house.core.router.queues.values()
    assert queue.spec.routes == (NEXT,)
    client.call("network_routes", channel=channel, routes=" ".join(long[:4]))
    assert client.code == 0
    house.rest()
    again = House(make_core(log.after_crash(), records=log.recovered()))
    assert [one.spec.routes for one in again.core.router.queues.values()] == [tuple(long[:4])]


def test_a_definition_whose_record_could_not_be_read_again_is_not_written() -> None:
    house = make_house(FakeLog())
    with pytest.raises(UsageError, match=r"8,192 are possible"):
        house.core.definitions._records.write({"kind": "address", "name": "x" * 9_000, "routing": "anycast"})


@pytest.mark.parametrize(
    "name",
    [
        "to-b.t",
        f"to-b.t@{'a' * 31}",
        f"to-b.t@{'A' * 32}",
        f"@{'a' * 32}",
        f"to-b.t@{'a' * 32}#0",
        f"to-b.t@{'a' * 32}#0-x",
        f"to-b.t@{'a' * 32}#00-{'0' * 16}",
        f"to-b.t@{'a' * 32}#4000-{'0' * 16}",
        f"to-b.t@{'a' * 32}#99999999999-{'0' * 16}",
    ],
)
def test_a_name_that_no_connector_gives_is_refused(name: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    keep(client, name=f"{NETWORK_KEPT}{name}")
    assert client.code == USAGE and not house.core.router.queues
    keep(client, name=f"{NETWORK_KEPT}to-b.t@{'a' * 32}#3999-{'0' * 16}")
    assert client.code == 0


def test_no_more_ids_than_an_address_remembers_are_kept_after_a_start() -> None:
    address = Address("t", "multicast", AddressSettings(duplicate_id_cache_size=10), lambda *_: {})
    ids = [NETWORK_MARK + bytes([one]) for one in range(100)]
    for at in range(0, 100, 25):
        note_recovered(address, ids[at : at + 25])
        assert len(address.hops) <= 10
    assert list(address.hops) == ids[90:]


def test_queues_are_named_to_their_own_broker_page_by_page_and_to_nobody_who_may_not_manage() -> None:
    house = make_house(FakeLog())
    client = house.client()
    others = [f"{NETWORK_KEPT}to-b.t@{'c' * 32}", f"{NETWORK_KEPT}other.t@{'a' * 32}"]
    names = [f"{NETWORK_KEPT}to-b.{number:02}{'x' * 200}@{'a' * 32}" for number in range(20)]
    for name in (*others, *names):
        client.leave(keep(client, name=name))
    client.call("create_queue", name="mine", address="t", routing="multicast")
    about = {"node_id": "a" * 32, "beginning": f"{NETWORK_KEPT}to-b"}
    found: list[str] = []
    pages, more = 0, True
    while more:
        answer = client.call("network_queues", after=found[-1] if found else "", **about) or {}
        page = [name for key, name in answer.items() if key.startswith("queue")]
        found, pages, more = found + page, pages + 1, answer["more"]
    assert (found, pages) == ([f"t::{name}" for name in names], 2)
    keep(client, name=names[3], routes=("c" * 32,))
    for target_id, whose in (("c" * 32, [names[3]]), ("d" * 32, [])):
        answer = client.call("network_queues", after="", target_id=target_id, **about) or {}
        assert answer.pop("target_id") == target_id
        assert answer == {"more": False, **{f"queue{at}": f"t::{name}" for at, name in enumerate(whose)}}
    for wrong in ({"node_id": "a"}, {"beginning": "t"}, {"after": 0}, {"target_id": "b"}):
        client.call("network_queues", **{**about, "after": "", **wrong})
        assert client.code == USAGE and "network_queues takes" in said(client), wrong


def said(client: RawClient) -> str:
    """The text of the last answer."""
    return header_of(client.last(FrameType.ANSWER), Answer).text


def test_queues_of_network_consumers_and_of_users_take_no_room_from_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (limits.FILTERED_QUEUES_PER_ADDRESS_MAX, limits.NETWORK_QUEUES_PER_ADDRESS_MAX) == (400, 400)
    for name, most in (("FILTERED_QUEUES", 2), ("NETWORK_QUEUES", 3), ("QUEUES", 4)):
        monkeypatch.setattr(limits, f"{name}_PER_ADDRESS_MAX", most)
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    kept = keep(client, filter="a = 1")
    own = keep(client, subscription="own", durable=False, name="", filter="a = 2")
    keep(client, name=f"{NAME}#1-{'0' * 16}")
    assert client.code == 0
    keep(client, name=f"{NAME}#2-{'0' * 16}")
    assert client.code == USAGE and "has its 3 queues for network consumers" in said(client)
    for number in range(2):
        client.call("create_queue", name=f"f{number}", address="t", routing="multicast", filter="a = 3")
    assert client.code == 0
    client.call("create_queue", name="f2", address="t", routing="multicast", filter="a = 3")
    assert client.code == USAGE and "has its 2 queues with filters" in said(client)
    for name in ("p0", "p1", "p2"):
        client.call("create_queue", name=name, address="t", routing="multicast")
    assert client.code == USAGE and "has its 4 queues" in said(client)
    # One that goes gives its room back, and after a start they are counted as before.
    client.leave(own)
    keep(client, name=f"{NAME}#2-{'0' * 16}")
    assert client.code == 0
    client.leave(kept)
    house.rest()
    again = House(make_core(log.after_crash(), records=log.recovered()))
    address = again.core.router.addresses["t"]
    assert (address.network.taken, address.filtered, len(address.queues)) == (3, 5, 7)


def test_the_queue_has_no_cursor_which_would_stop_its_link() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.leave(keep(client))
    client.call("open_cursor", queue=f"t::{NAME}", name="c", token="a", lease_ms=1_000)
    assert client.code == USAGE
    keep(client)
    assert client.code == 0
