"""Queues to which a prepared transaction sends stay until the decision: its messages are stored, and none is lost."""

from __future__ import annotations

import pytest

from meshq.broker.catalog._diverts import DivertRule, Diverts
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME
from tests.broker.kit import House, RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.preparing import XID, decide, next_life, prepare, recovered
from tests.broker.test_transactions import Tx, clean

UNDECIDED = BY_NAME["undecided"].number


def prepared_send(
    house: House, address: str, *bodies: bytes, xid: bytes = XID, durable: bool = True, number: int = 1
) -> RawClient:
    """A transaction that sends messages to an address is prepared; returns who did that."""
    client = house.client()
    tx = Tx(client, number=number)
    tx.send(address, *bodies, durable=durable)
    assert prepare(tx, xid) == 0
    return client


def refused(client: RawClient, operation: str, **arguments: str) -> str:
    """What is said of an operation that is refused because of something prepared."""
    client.call(operation, **arguments)
    answer = client.answer(client.calls)
    assert answer is not None
    assert answer.code == UNDECIDED
    return answer.text


@pytest.mark.parametrize("lives", [0, 1])
@pytest.mark.parametrize("routing", ["multicast", "anycast"])
@pytest.mark.parametrize("target", ["news", "news::second"])
def test_the_queues_of_what_is_prepared_are_not_deleted(target: str, routing: str, lives: int) -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("first", "second"):
        client.call("create_queue", name=name, address="news", routing=routing)
    prepared_send(house, target, b"a", b"b")
    for _ in range(lives):
        house, client = next_life(house)
    assert "order-7" in refused(client, "delete_queue", name="second")
    if target == "news":
        refused(client, "delete_queue", name="first")
    else:
        # It is for another one.
        assert client.call("delete_queue", name="first") == {"removed": 0}
    assert decide(client, "commit") == 0
    found = [body for name in house.core.router.queues for body in client.bodies(client.consume(name))]
    copies = 2 if (target, routing) == ("news", "multicast") else 1
    assert sorted(found) == sorted([b"a", b"b"] * copies)
    assert house.core.ingress.unrouted == 0
    clean(house)


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_once_it_is_decided_they_go(what: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="left", address="news", routing="multicast")
    for number, xid in enumerate((b"one", b"two"), 1):
        prepared_send(house, "news", b"a", xid=xid, number=number)
    assert "one" in refused(client, "delete_queue", name="left")
    assert decide(client, what, b"one") == 0
    assert "two" in refused(client, "delete_queue", name="left")
    assert decide(client, what, b"two") == 0
    assert client.call("delete_queue", name="left") == {"removed": 2 if what == "commit" else 0}


def test_a_durable_subscription_is_not_ended_before_the_decision() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.leave(client.consume("news", subscription="single", name="me", durable=True))
    prepared_send(house, "news", b"a")
    refused(client, "unsubscribe", address="news", name="me")
    assert decide(client, "commit") == 0
    assert client.call("unsubscribe", address="news", name="me") == {"removed": 1}


@pytest.mark.parametrize("lives", [0, 1])
def test_what_a_divert_is_to_take_keeps_the_divert_and_the_queues_behind_it(lives: int) -> None:
    """The address itself has no queue: without the divert nobody would get the message."""
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_address", name="news", routing="multicast")
    for name in ("archive", "copy"):
        client.call("create_queue", name=name, address=name, routing="multicast")
    for name, address, to in (("far", "archive", "copy"), ("near", "news", "archive")):
        client.call("create_divert", name=name, address=address, forwarding_address=to)
    prepared_send(house, "news", b"a")
    for _ in range(lives):
        house, client = next_life(house)
    for name in ("near", "far"):
        assert name in refused(client, "delete_divert", name=name)
    for name in ("archive", "copy"):
        assert name in refused(client, "delete_queue", name=name)
    assert decide(client, "commit") == 0
    assert [client.bodies(client.consume(name)) for name in ("archive", "copy")] == [[b"a"], [b"a"]]
    assert client.call("delete_divert", name="near") == {}
    clean(house)


def test_what_is_for_one_queue_by_name_is_not_diverted_and_keeps_no_divert() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="orders")
    client.call("create_divert", name="copies", address="orders", forwarding_address="copy")
    client.call("create_queue", name="copy")
    prepared_send(house, "orders::orders", b"a")
    assert client.call("delete_divert", name="copies") == {}
    assert client.call("delete_queue", name="copy") == {"removed": 0}


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_a_queue_that_would_go_by_itself_waits_for_what_is_prepared(what: str) -> None:
    settings = {"#": AddressSettings(auto_delete_queues=True, default_routing="multicast")}
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    channel = client.consume("news::mine")
    prepared_send(house, "news", b"a")
    client.leave(channel)
    assert "mine" in house.core.router.queues
    assert decide(client, what) == 0
    assert ("mine" in house.core.router.queues) is (what == "commit")
    if what == "commit":
        assert client.bodies(client.consume("news::mine")) == [b"a"]


def test_a_subscription_that_goes_with_its_consumer_still_does() -> None:
    """It would fill for as long as nobody decides, for nobody."""
    house = make_house(FakeLog())
    client = house.client()
    channel = client.consume("news", subscription="own", name="me", durable=False)
    prepared_send(house, "news", b"a")
    client.leave(channel)
    assert not house.core.router.queues
    assert decide(client, "commit") == 0
    assert house.core.ingress.unrouted == 1


@pytest.mark.parametrize("lives", [0, 1])
def test_what_was_for_a_temporary_queue_that_is_gone_does_not_hold_up_the_rest(lives: int) -> None:
    """Such a queue never comes again: the commit would be refused for ever."""
    house = make_house(FakeLog())
    client, asker = house.client(), house.client()
    values = asker.call("create_temporary_queue")
    assert values is not None
    tx = Tx(client)
    tx.send(values["name"], b"reply")
    tx.send("done", b"a")
    assert prepare(tx) == 0
    asker.close()
    for _ in range(lives):
        house, client = next_life(house)
    assert values["name"] not in house.core.router.queues
    assert decide(client, "commit") == 0
    assert recovered(client) == []
    assert client.bodies(client.consume("done")) == [b"a"]
    assert house.core.ingress.unrouted == 1
    assert client.call("delete_queue", name="done") == {"removed": 1}
    clean(house)


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_what_was_for_a_temporary_queue_is_left_out_once_however_often_the_commit_is_tried(what: str) -> None:
    settings = {"out": AddressSettings(auto_create_queues=False)}
    house = make_house(FakeLog(), settings=settings)
    client, asker = house.client(), house.client()
    values = asker.call("create_temporary_queue")
    assert values is not None
    client.call("create_queue", name="out", durable=False)
    tx = Tx(client)
    tx.send(values["name"], b"reply")
    tx.send("out", b"a")
    assert prepare(tx) == 0
    house, client = next_life(house, settings=settings)
    for _ in range(2):
        assert decide(client, "commit") == BY_NAME["retry_transaction"].number
    assert house.core.ingress.unrouted == 1
    client.call("create_queue", name="out")
    assert decide(client, what) == 0
    assert client.bodies(client.consume("out")) == ([b"a"] if what == "commit" else [])
    clean(house)


def test_the_addresses_that_lead_to_one_are_found_over_several_diverts() -> None:
    diverts = Diverts({})
    for name, address, to in (("1", "a", "b"), ("2", "b", "d"), ("3", "c", "d"), ("4", "d", "e"), ("5", "a", "d")):
        diverts.add(DivertRule(name=name, address=address, forwarding_address=to, filter=None, exclusive=False))
    assert sorted(diverts.sources("d")) == ["a", "b", "c"]
    assert diverts.sources("a") == []
