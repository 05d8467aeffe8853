"""Temporary queues and subscriptions as sessions come, are lost, come back and end."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, Consume, FrameType
from tests.broker.kit import Clock, FakeLog, House, RawClient, make_core, make_house


def code(name: str) -> int:
    return BY_NAME[name].number


def subscribe(client: RawClient, address: str = "news", kind: str = "own", name: str = "", **about: Any) -> int:
    """Open a channel for a subscription."""
    client.channels += 1
    header = Consume(queue=address, window=10, window_bytes=1 << 20, subscription=kind, name=name, **about)
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client.channels


def made(client: RawClient) -> str:
    answer = client.call("create_temporary_queue")
    assert answer is not None
    return str(answer["name"])


def test_what_is_a_sessions_own_outlives_its_connection_and_not_the_session() -> None:
    clock = Clock()
    house = House(make_core(FakeLog()), clock)
    client, other = house.client(ttl_ms=5_000), house.client()
    name = made(client)
    channel = subscribe(client)
    client.deaf = True
    client.drop()
    other.put(other.produce("news"), b"1")
    other.put(other.produce(name, b"other-----------"), b"2")
    clock.now = 4.9
    house.sessions.expire()
    assert client.resume(ttl_ms=5_000).resumed
    assert client.bodies(channel) == [b"1"]
    assert client.bodies(client.consume(name)) == [b"2"]
    client.drop()
    clock.now = 10
    house.sessions.expire()
    assert list(house.core.router.queues) == [] and name not in house.core.router.addresses
    assert house.core.memory.used_bytes == 0
    house.check()


@pytest.mark.parametrize("address", ["news.#", "#", "*", "*.sport", "news.*.today"])
def test_a_subscription_of_a_pattern_is_refused_by_name_and_makes_nothing(address: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    subscribe(client, address, kind="shared", name="desk", durable=True)
    assert client.code == code("usage")
    assert not house.core.router.addresses and not house.core.router.queues
    # What only looks like one is a name like any other.
    subscribe(client, "news.a*.c#", kind="shared", name="desk", durable=True)
    assert list(house.core.router.queues) == ["news.a*.c#::desk"]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_subscription_that_is_not_durable_goes_before_its_leaver_is_answered(leaves: bool) -> None:
    house = make_house(FakeLog())
    client, other = house.client(), house.client()
    channel = subscribe(client, kind="shared", name="desk")
    second = subscribe(other, kind="shared", name="desk")
    other.leave(second)
    assert list(house.core.router.queues) == ["news::desk"]
    if leaves:
        client.leave(channel)
    else:
        client.close()
    assert list(house.core.router.queues) == []
    # Nothing of it comes back, and its number is not given again.
    client = house.client()
    subscribe(client, kind="single", name="desk")
    assert house.queue("news::desk").number == 2


def test_a_session_that_breaks_the_protocol_takes_its_temporary_queues_along() -> None:
    house = make_house()
    client = house.client()
    made(client)
    client.send(FrameType.SEND, channel=99, first=1, count=1)
    assert client.all_closed() and list(house.core.router.queues) == []


def test_a_subscription_can_end_on_a_full_disk() -> None:
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    subscribe(client)
    made(client)
    log.full = True
    client.close()
    assert list(house.core.router.queues) == []


def test_a_durable_subscription_is_the_same_after_a_crash() -> None:
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    subscribe(client, kind="shared", name="desk", durable=True)
    subscribe(client, kind="shared", name="fleeting")
    client.put(client.produce("news"), b"1")
    house = House(make_core(log.after_crash(), records=log.recovered()))
    assert list(house.core.router.queues) == ["news::desk"]
    client = house.client()
    for terms in ({"kind": "single", "durable": True}, {"kind": "shared"}):
        subscribe(client, name="desk", **terms)
        assert client.code == code("usage")
    channel = subscribe(client, kind="shared", name="desk", durable=True)
    assert client.bodies(channel) == [b"1"]
    client.leave(channel)
    assert client.call("unsubscribe", address="news", name="desk") == {"removed": 1}
    house = House(make_core(house.log.after_crash(), records=house.log.recovered()))
    assert list(house.core.router.queues) == []


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ({"kind": "odd", "name": "a"}, "usage"),
        ({"kind": "single", "name": ""}, "usage"),
        ({"kind": "single", "name": "a::b"}, "usage"),
        ({"kind": "own", "durable": True}, "usage"),
        ({"address": "news::a"}, "usage"),
        ({"address": "$meshq.a"}, "usage"),
        ({"address": "closed"}, "not_found"),
        ({"filter": "a = = 1"}, "bad_filter"),
    ],
)
def test_what_a_client_may_not_ask_for_is_answered_so_and_nothing_is_made(wanted: dict[str, Any], refusal: str) -> None:
    house = House(make_core(settings={"closed": AddressSettings(auto_create_queues=False)}))
    client = house.client()
    subscribe(client, **wanted)
    assert client.code == code(refusal)
    assert not house.core.router.queues and not house.core.router.addresses


def test_a_session_has_so_many_temporary_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNELS_MAX", 2)
    client = make_house().client()
    names = [made(client) for _ in range(2)]
    client.call("create_temporary_queue")
    assert client.code == code("too_many")
    client.call("delete_queue", name=names[0])
    made(client)


def test_while_a_node_stops_nothing_of_this_is_written() -> None:
    house = make_house(FakeLog())
    client = house.client()
    subscribe(client)
    made(client)
    before = house.log.last
    house.core.closing.begin("the node is stopping")
    client.close()
    assert house.log.last == before
