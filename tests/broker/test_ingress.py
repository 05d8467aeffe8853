"""Placing and release: order, durability, who gets which message."""

from __future__ import annotations

import pytest

from meshq.broker.records import RUN, SETTLED, decode_run
from meshq.settings import AddressSettings
from meshq.wire import FrameType
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house


def quiet(log: FakeLog | None = None) -> House:
    """A durable house in which the test says when the disk syncs."""
    house = make_house(FakeLog() if log is None else log)
    house.auto = False
    return house


def opened(house: House) -> tuple[RawClient, int, int]:
    """A client with a producer and a consumer of one queue."""
    house.auto = True
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    house.auto = False
    return client, producer, consumer


def test_a_durable_message_is_neither_seen_nor_confirmed_before_it_is_on_disk() -> None:
    house = quiet()
    client, producer, consumer = opened(house)
    client.put(producer, b"a", b"b")
    assert client.got(consumer) == [] and client.confirmed == []
    assert house.queue().counts.ready == 0
    house.log.sync()
    assert client.bodies(consumer) == [b"a", b"b"]
    assert client.confirmed == [(producer, 2)]
    types = [frame.type for frame in client.frames]
    assert types.index(FrameType.DELIVER) < types.index(FrameType.CONFIRM)


def test_what_was_placed_is_released_in_placing_order_as_far_as_the_disk_has_come() -> None:
    house = quiet()
    client, producer, consumer = opened(house)
    positions = []
    for body in (b"a", b"b", b"c"):
        client.put(producer, body)
        positions.append(house.log.last)
    house.log.sync(positions[1])
    assert client.bodies(consumer) == [b"a", b"b"]
    assert client.confirmed == [(producer, 2)]
    house.log.sync()
    assert client.bodies(consumer) == [b"a", b"b", b"c"]


def test_a_message_that_is_not_durable_waits_its_turn_behind_one_that_is_not_on_disk_yet() -> None:
    house = quiet()
    client, producer, consumer = opened(house)
    client.put(producer, b"first", durable=False)
    house.log.sync()
    assert client.bodies(consumer) == [b"first"]
    client.put(producer, b"second")
    client.put(producer, b"third", durable=False)
    assert client.bodies(consumer) == [b"first"]
    house.log.sync()
    assert client.bodies(consumer) == [b"first", b"second", b"third"]
    assert client.confirmed[-1] == (producer, 3)


def test_a_message_that_is_not_durable_goes_at_once_where_nothing_waits_and_its_number_is_covered() -> None:
    house = quiet()
    client, producer, consumer = opened(house)
    client.put(producer, b"a", durable=False)
    # The first number that leaves no trace waits for the record that reserves it.
    assert client.bodies(consumer) == []
    house.log.sync()
    before = house.log.last
    client.put(producer, b"b", durable=False)
    assert client.bodies(consumer) == [b"a", b"b"]
    assert house.log.last == before


def test_without_a_journal_everything_is_released_at_once() -> None:
    house = make_house()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    client.put(producer, b"a")
    assert client.bodies(consumer) == [b"a"]
    assert client.confirmed == [(producer, 1)]
    assert not house.core.durable


# -- anycast and multicast


def test_an_anycast_address_deals_each_message_to_one_of_its_queues_evenly() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("a", "b", "c"):
        client.call("create_queue", name=name, address="work")
    producer = client.produce("work")
    for count in (5, 1, 1, 2):
        client.put(producer, *[b"x"] * count)
    assert [house.queue(name).counts.ready for name in "abc"] == [3, 3, 3]
    client.put(producer, *[b"%d" % number for number in range(6)])
    channels = {name: client.consume(name) for name in "abc"}
    bodies = [body for name in "abc" for body in client.bodies(channels[name]) if body != b"x"]
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    house.check()


def test_a_multicast_address_copies_each_message_to_all_of_its_queues() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    producer = client.produce("news")
    client.put(producer, b"1", b"2")
    one, two = client.consume("a"), client.consume("b")
    assert client.bodies(one) == client.bodies(two) == [b"1", b"2"]
    # One record, one content: it goes when the last queue is done with it.
    runs = [record for record in house.log.living() if record.kind == RUN]
    assert [len(decode_run(record.payload).targets) for record in runs] == [2]
    used = house.core.memory.used_bytes
    client.settle(one, (1, 2))
    assert house.core.memory.used_bytes == used
    client.settle(two, (1, 2))
    assert house.core.memory.used_bytes == 0
    assert RUN not in [record.kind for record in house.log.living()]


def test_a_purge_in_parts_ends_a_shared_run_for_one_queue_only() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    producer, one = client.produce("news"), client.consume("a", 3)
    client.put(producer, b"1", b"2", b"3")
    client.settle(one, (2, 2))
    client.leave(one)
    assert client.call("purge_queue", name="a") == {"removed": 2}
    assert RUN in [record.kind for record in house.log.living()]
    assert house.core.memory.used_bytes > 0
    two = client.consume("b")
    assert client.bodies(two) == [b"1", b"2", b"3"]
    client.settle(two, (1, 3))
    assert house.core.memory.used_bytes == 0
    assert RUN not in [record.kind for record in house.log.living()]


def test_a_name_of_an_address_and_a_queue_reaches_that_queue_only() -> None:
    house = make_house()
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="work")
    producer = client.produce("work::b")
    client.put(producer, b"1", b"2")
    assert [house.queue(name).counts.ready for name in "ab"] == [0, 2]


def test_a_message_to_a_multicast_address_without_queues_goes_nowhere_and_is_confirmed() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_address", name="news", routing="multicast")
    producer = client.produce("news")
    client.put(producer, b"1", b"2")
    assert client.confirmed == [(producer, 2)]
    assert (house.core.ingress.unrouted, house.core.memory.used_bytes) == (2, 0)
    # Sent again it is known, though nobody has it.
    client.put(producer, b"1", b"2", flags=2, first=1)
    assert house.core.ingress.unrouted == 2


def test_a_durable_message_in_a_queue_that_is_not_durable_leaves_no_record() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="q", durable=False)
    producer, consumer = client.produce(), client.consume()
    before = house.log.last
    client.put(producer, b"1")
    assert client.bodies(consumer) == [b"1"]
    client.settle(consumer, (1, 1))
    assert house.log.last == before
    assert house.core.memory.used_bytes == 0


def test_a_run_in_a_durable_queue_and_one_that_is_not_lives_until_both_are_done() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="a", address="news", routing="multicast")
    client.call("create_queue", name="b", address="news", routing="multicast", durable=False)
    producer, one, two = client.produce("news"), client.consume("a"), client.consume("b")
    client.put(producer, b"1", b"2")
    (record,) = [record for record in house.log.records if record.kind == RUN]
    assert [target.queue for target in decode_run(record.payload).targets] == [house.queue("a").number]
    client.settle(one, (1, 2))
    assert house.log.records[-1].kind == SETTLED
    assert record in house.log.living()
    client.settle(two, (1, 2))
    assert record not in house.log.living()
    assert house.core.memory.used_bytes == 0


# -- what is refused changes nothing


def test_a_run_that_a_full_disk_refuses_leaves_nothing_behind() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    client.put(producer, b"1")
    before = (house.queue().last, house.core.memory.used_bytes, house.log.last, house.queue().counts.ready)
    house.log.full = True
    client.put(producer, b"2")
    assert client.refused() == [(2, 1, 65)]
    assert (house.queue().last, house.core.memory.used_bytes, house.log.last, house.queue().counts.ready) == before
    assert house.core.ingress.producers.get(b"producer-16bytes") == 1
    house.log.full = False
    client.put(producer, b"2", first=2)
    assert client.confirmed[-1] == (producer, 2)


def test_an_address_that_a_full_disk_refuses_does_not_exist_in_memory_either() -> None:
    log = FakeLog(full=True)
    house = make_house(log)
    client = house.client()
    producer = client.produce("new")
    assert client.code == 65
    client.call("create_queue", name="x")
    client.call("create_address", name="y", routing="anycast")
    assert (house.core.router.addresses, house.core.router.queues, log.records) == ({}, {}, [])
    log.full = False
    assert client.call("create_queue", name="x") == {"name": "x", "address": "x"}
    # A start on what was written finds what there is here.
    again = make_core(log.after_crash(), records=log.recovered())
    assert list(again.router.queues) == ["x"]
    assert producer == 1


@pytest.mark.parametrize("auto_create", [True, False])
def test_an_address_that_is_not_made_on_first_use_is_not_found(auto_create: bool) -> None:
    house = make_house(settings={"#": AddressSettings(auto_create_queues=auto_create)})
    client = house.client()
    client.produce("orders")
    assert client.code == (0 if auto_create else 64)
    client.consume("other")
    assert client.code == (0 if auto_create else 64)
    assert list(house.core.router.queues) == (["orders", "other"] if auto_create else [])


def test_a_send_to_an_address_that_lost_its_queue_is_refused_where_none_is_made_on_first_use() -> None:
    house = make_house(settings={"#": AddressSettings(auto_create_queues=False)})
    client = house.client()
    client.call("create_queue", name="orders")
    producer = client.produce("orders")
    client.put(producer, b"1")
    client.call("delete_queue", name="orders")
    client.put(producer, b"2")
    assert client.refused() == [(2, 1, 64)]
    assert house.core.memory.used_bytes == 0
