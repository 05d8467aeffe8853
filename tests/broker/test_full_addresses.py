"""Addresses that hold no more than they may: who waits, who is refused, what is dropped, and what counts."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.broker import EventBus
from meshq.broker.catalog._address_quota import UNLIMITED, AddressQuota
from meshq.broker.catalog._producer_credit import ProducerCredit
from meshq.broker.queue._queue_machine import Queue
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, FrameType
from tests.broker.hosts import FakePageRequests
from tests.broker.kit import House, make_house, with_ids
from tests.broker.logs import FakeLog


def house_of(log: FakeLog | None = None, records: Any = (), memory: int = 1 << 30, **settings: Any) -> House:
    return make_house(log or FakeLog(), settings={"q": AddressSettings(**settings)}, records=records, memory=memory)


def test_a_full_address_refuses_and_takes_again_what_has_room() -> None:
    house = house_of(full_policy="fail", max_size_messages=2)
    client = house.client()
    sender = client.produce()
    for body in (b"1", b"2", b"3"):
        client.put(sender, body)
    assert len(client.refused()) == 1 and client.refused()[0][2] == BY_NAME["address_full"].number
    assert house.queue().counts.ready == 2
    reader = client.consume()
    client.settle(reader, (1, 1))
    client.put(sender, b"4")
    assert len(client.refused()) == 1 and house.queue().counts.added == 3


def test_what_a_consumer_holds_or_is_not_released_yet_takes_room() -> None:
    house = house_of(full_policy="fail", max_size_messages=2)
    client = house.client()
    client.consume()
    sender = client.produce()
    client.put(sender, b"1")
    house.auto = False
    client.put(sender, b"2")
    assert house.queue().counts.unacked == 1 and house.queue().counts.ready == 0
    client.put(sender, b"3")
    assert len(client.refused()) == 1


def test_bytes_are_those_of_runs_until_every_queue_is_done_with_them() -> None:
    house = house_of(full_policy="fail", max_size_bytes=3_000)
    client = house.client()
    client.call("create_queue", name="a", address="q", routing="multicast")
    client.call("create_queue", name="b", address="q", routing="multicast")
    sender = client.produce()
    client.put(sender, bytes(3_000))
    client.put(sender, b"no")
    assert len(client.refused()) == 1
    for queue in ("a", "b"):
        reader = client.consume(queue)
        client.put(sender, b"no")
        client.settle(reader, (1, 1))
    assert len(client.refused()) == 3
    client.put(sender, b"yes")
    room = house.core.router.quotas["q"]
    assert len(client.refused()) == 3 and room.bytes == house.core.memory.used_bytes > 0


def test_the_fullest_queue_of_a_multicast_address_counts() -> None:
    house = house_of(full_policy="fail", max_size_messages=2)
    client = house.client()
    client.call("create_queue", name="a", address="q", routing="multicast")
    client.call("create_queue", name="b", address="q", routing="multicast")
    sender = client.produce()
    client.put(sender, b"1")
    client.put(sender, b"2")
    assert not client.refused()
    reader = client.consume("a")
    client.settle(reader, (1, 2))
    client.put(sender, b"3")
    assert len(client.refused()) == 1


def test_a_repeat_of_what_is_stored_is_confirmed_also_when_there_is_no_room() -> None:
    house = house_of(full_policy="fail", max_size_messages=1)
    client = house.client()
    sender = client.produce()
    client.put(sender, b"1", envelopes=with_ids("one"))
    client.put(sender, b"1", envelopes=with_ids("one"))
    assert not client.refused() and house.core.ingress.duplicates == 1


def test_what_has_no_room_is_confirmed_dropped_and_counted() -> None:
    house = house_of(full_policy="drop", max_size_messages=2)
    client = house.client()
    sender = client.produce()
    for body in (b"1", b"2", b"3", b"4"):
        last = client.put(sender, body)
    assert client.last(FrameType.CONFIRM).first == last and not client.refused()
    queue = client.call("queue", name="q")
    assert queue is not None and (queue["added"], queue["dropped"]) == (2, 2)
    assert house.core.ingress.dropped == 2
    client.settle(client.consume(), (1, 2))
    client.put(sender, b"5")
    assert house.queue().counts.added == 3


@pytest.mark.parametrize(("policy", "added"), [("fail", 1), ("drop", 1), ("page", 2), ("block", 2)])
def test_scarce_memory_is_for_addresses_where_somebody_waits(policy: str, added: int) -> None:
    house = house_of(full_policy=policy, memory=8 * limits.MIB)
    client = house.client()
    sender = client.produce()
    client.put(sender, bytes(7 * limits.MIB))
    client.put(sender, b"2")
    assert house.queue().counts.added == added


def test_a_producer_is_told_how_far_it_may_send_and_goes_on_when_there_is_room() -> None:
    house = house_of(full_policy="block", max_size_messages=4)
    client = house.client()
    sender = client.produce()
    until = client.untils[sender]
    assert 0 < until <= 4
    sent = 0
    while sent < client.untils[sender]:
        sent += 1
        client.put(sender, b"x")
    assert sent == 4 and house.queue().counts.ready == 4
    other = client.produce("other")
    assert other not in client.untils
    reader = client.consume()
    client.settle(reader, (1, 1))
    assert client.untils[sender] == 5
    client.put(sender, b"x")
    client.settle(reader, (2, 5))
    assert client.untils[sender] > 5


def test_one_that_does_not_send_keeps_nobody_waiting() -> None:
    house = house_of(full_policy="block", max_size_messages=2)
    client, idle = house.client(), house.client()
    lazy = idle.produce(producer=b"l" * 16)
    sender = client.produce()
    assert idle.untils[lazy] >= 1
    for _ in range(2):
        assert client.untils[sender] > client.numbers[sender]
        client.put(sender, b"x")
    assert client.untils[sender] == client.numbers[sender]


def test_a_producer_that_waited_leaves_and_gives_its_promise_back() -> None:
    house = house_of(full_policy="block", max_size_messages=1)
    client, other = house.client(), house.client()
    first = client.produce()
    client.put(first, b"x")
    second = other.produce(producer=b"s" * 16)
    room = house.core.router.quotas["q"]
    assert room.waiting == 2 and other.untils[second] == 0
    client.leave(first)
    assert room.waiting == 1
    other.close()
    assert room.waiting == 0 and room.idle


def test_settings_bound_and_unbound_an_address_while_the_node_runs() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, b"1", b"2", b"3")
    assert sender not in client.untils
    client.call("set_address_settings", pattern="q", full_policy="block", max_size_messages=3)
    assert client.untils[sender] == 3
    client.call("set_address_settings", pattern="q", full_policy="fail", max_size_messages=3)
    assert client.untils[sender] == UNLIMITED
    client.put(sender, b"4")
    assert len(client.refused()) == 1
    client.call("set_address_settings", pattern="q", full_policy="fail", max_size_bytes=1)
    client.put(sender, b"5")
    assert len(client.refused()) == 2
    client.call("remove_address_settings", pattern="q")
    client.put(sender, b"6")
    assert len(client.refused()) == 2 and house.queue().counts.ready == 4


def test_what_is_recovered_takes_its_room() -> None:
    log = FakeLog()
    house = house_of(log, full_policy="fail", max_size_messages=2, max_size_bytes=10_000)
    client = house.client()
    sender = client.produce()
    client.put(sender, b"1")
    client.put(sender, b"2")
    taken = house.core.router.quotas["q"].bytes
    later = log.after_crash()
    house = house_of(later, later.recovered(), full_policy="fail", max_size_messages=2, max_size_bytes=10_000)
    assert house.core.router.quotas["q"].bytes == taken > 0
    client = house.client()
    client.put(client.produce(producer=b"n" * 16), b"3")
    assert len(client.refused()) == 1


@pytest.mark.parametrize(("policy", "dead", "ready"), [("fail", 1, 1), ("block", 1, 1), ("drop", 1, 0), ("page", 2, 0)])
def test_what_is_moved_to_a_full_address_stays_unless_it_may_be_dropped(policy: str, dead: int, ready: int) -> None:
    settings = {
        "q": AddressSettings(dead_letter_address="d"),
        "d": AddressSettings(full_policy=policy, max_size_messages=1),
    }
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    client.put(client.produce("d", producer=b"d" * 16), b"there")
    client.put(client.produce(), b"bad")
    call = client.call("move_messages", name="q", address="d")
    assert house.queue("d").counts.ready == dead and house.queue().counts.ready == ready
    assert (call == {}) == (ready == 1)


def test_a_room_adds_up() -> None:
    queue = Queue(1, "q", "q", durable=False)
    room = AddressQuota("q", "anycast", [queue], event_bus=EventBus(), press=FakePageRequests().wake)
    room.rule(AddressSettings(full_policy="block", max_size_messages=100), pages=True)
    told: dict[int, int] = {}
    credits: list[ProducerCredit] = []
    for number in range(5):
        credit = room.open(0, lambda until, number=number: told.__setitem__(number, until))  # type: ignore[misc]
        credits.append(credit)
    assert sum(credit.promised for credit in credits) <= 100
    for credit in credits:
        credit.sent(credit.until)
    for credit in credits:
        credit.close()
    assert room.waiting == 0 and room.idle and room._reserved == 0


def test_without_a_disk_page_waits_as_block_does() -> None:
    house = make_house(settings={"q": AddressSettings(max_size_messages=1)})
    client = house.client()
    sender = client.produce()
    client.put(sender, b"x")
    assert client.untils[sender] == 1


@pytest.mark.parametrize("leaves", [True, False])
def test_nothing_is_kept_of_an_address_that_is_gone_once_its_last_producer_has_left(leaves: bool) -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(full_policy="fail", max_size_messages=2)})
    owner, client = house.client(), house.client()
    made = owner.call("create_temporary_queue")
    assert made is not None
    sender = client.produce(made["name"])
    client.put(sender, b"answer", durable=False)
    owner.close()
    house.rest()
    assert house.core.router.addresses == {} and list(house.core.router.quotas) == [made["name"]]
    if leaves:
        client.leave(sender)
    else:
        client.close()
    assert house.core.router.quotas == {}


def test_whoever_waits_behind_what_went_with_its_queue_goes_on() -> None:
    house = house_of(full_policy="block", max_size_messages=1)
    client, other = house.client(), house.client()
    sender = client.produce()
    house.auto = False
    client.put(sender, b"1")
    waiting = other.produce(producer=b"another-producer")

    def told() -> list[int]:
        return [frame.first for frame in other.all(FrameType.CREDIT) if frame.channel == waiting]

    client.call("delete_queue", name="q")
    assert told() == []
    house.rest()
    assert told() == [1]
