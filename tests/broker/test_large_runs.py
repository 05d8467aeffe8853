"""Runs and transactions that the reserve of a full disk could not take: they wait in front of everything else."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.errors import AddressFullError
from meshq.wire import BY_NAME
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.test_transactions import Tx, clean

FULL, ROLLED_BACK = (BY_NAME[name].number for name in ("address_full", "rolled_back"))
LARGE = bytes(20_000)


def house_for(**options: Any) -> House:
    return make_house(FakeLog(large_bytes=10_000), **options)


@pytest.mark.parametrize("lossless", [False, True])
def test_a_large_run_waits_with_what_its_client_says_behind_it_and_keeps_nobody_else(lossless: bool) -> None:
    house = house_for()
    client, other = house.client(lossless=lossless), house.client()
    producer, second, theirs = client.produce(), client.produce("r", b"s" * 16), other.produce("q", b"o" * 16)
    consumer = other.consume()
    last = house.log.last
    client.put(producer, LARGE)
    client.put(producer, b"behind")
    client.put(second, b"beside")
    client.call("create_queue", name="new")
    assert house.log.last == last
    assert client.confirmed == []
    other.put(theirs, b"goes on")
    assert other.bodies(consumer) == [b"goes on"]
    house.log.answer()
    house.rest()
    assert other.bodies(consumer) == [b"goes on", LARGE, b"behind"]
    assert client.confirmed == [(producer, 2), (second, 1)]
    assert "new" in house.core.router.queues
    house.check()


def test_one_that_finds_no_room_is_refused_and_those_behind_it_go_on() -> None:
    house = house_for()
    house.log.room_bytes = 15_000
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    client.put(producer, LARGE)
    client.put(producer, b"behind")
    client.put(producer, LARGE)
    house.log.answer()
    assert len(house.log.asked) == 1
    house.log.answer()
    house.rest()
    assert [(first, count, code) for first, count, code in client.refused()] == [(1, 1, FULL), (3, 1, FULL)]
    assert client.bodies(consumer) == [b"behind"]
    # There is room again: it is stored once.
    house.log.room_bytes = 1 << 30
    client.put(producer, LARGE)
    house.log.answer()
    house.rest()
    assert client.bodies(consumer) == [b"behind", LARGE]


def test_two_large_ones_of_one_client_wait_one_after_the_other() -> None:
    house = house_for()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    client.put(producer, b"1" + LARGE)
    client.put(producer, b"2" + LARGE)
    assert len(house.log.asked) == 1
    house.log.answer()
    house.rest()
    assert [body[:1] for body in client.bodies(consumer)] == [b"1"]
    house.log.answer()
    house.rest()
    assert [body[:1] for body in client.bodies(consumer)] == [b"1", b"2"]


def test_what_takes_no_room_in_the_journal_does_not_wait() -> None:
    house = house_for()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    client.put(producer, LARGE, durable=False)
    client.put(producer, bytes(9_000))
    assert [len(body) for body in client.bodies(consumer)] == [20_000, 9_000]
    assert house.log.asked == []


def test_one_that_waits_when_the_link_breaks_comes_again() -> None:
    house = house_for()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    client.put(producer, LARGE)
    client.put(producer, b"behind")
    client.drop()
    house.log.answer()
    assert house.queue().counts.added == 0
    client.resume()
    assert house.queue().counts.added == 0
    house.log.answer()
    house.rest()
    assert client.bodies(consumer) == [LARGE, b"behind"]
    house.check()


def test_a_large_commit_waits_for_room_and_keeps_nobody() -> None:
    house = house_for()
    client = house.client()
    producer, channel = client.produce("out", b"s" * 16), client.consume("out")
    tx = Tx(client)
    tx.send("out", LARGE)
    tx.send("out", LARGE)
    assert tx.commit() is None
    client.put(producer, b"goes on")
    assert client.bodies(channel) == [b"goes on"]
    house.log.answer()
    house.rest()
    answer = client.answer(client.calls)
    assert answer is not None
    assert not answer.code
    assert client.bodies(channel) == [b"goes on", LARGE, LARGE]
    clean(house)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_small_commit_waits_for_room_while_batches_wait_for_the_disk(prepared: bool) -> None:
    house = house_for()
    client = house.client()
    channel = client.consume("out")
    tx = Tx(client)
    tx.send("out", b"small")
    house.log.queued.append(1)
    if prepared:
        assert client.call("prepare", transaction=1, sent=1, acked=0, xid=b"x") is None
        house.log.answer()
        assert client.call("commit_prepared", xid=b"x") is None
    else:
        assert tx.commit() is None
    assert client.bodies(channel) == []
    house.log.answer()
    house.rest()
    assert client.code == 0
    assert client.bodies(channel) == [b"small"]
    clean(house)


def test_a_commit_that_finds_no_room_is_rolled_back() -> None:
    house = house_for()
    house.log.room_bytes = 30_000
    client = house.client()
    producer = client.produce("in", b"s" * 16)
    client.put(producer, b"taken")
    channel = client.consume("in")
    tx = Tx(client)
    tx.send("out", LARGE)
    tx.send("out", LARGE)
    tx.ack(channel, 1, 1)
    assert tx.commit() is None
    house.log.answer()
    house.rest()
    assert client.code == FULL
    assert [(got.body, got.delivery_count) for got in client.got(channel)] == [(b"taken", 1), (b"taken", 2)]
    clean(house)


def test_a_transaction_that_ends_while_its_commit_waits_is_not_committed() -> None:
    house = house_for()
    client = house.client()
    tx = Tx(client)
    tx.send("out", LARGE)
    assert tx.commit() is None
    asked = client.calls
    for _ in range(int(house.core.transactions._timeout_s) + 2):
        house.core.transactions.tick()
    house.log.answer()
    house.rest()
    answer = client.answer(asked)
    assert answer is not None
    assert answer.code == ROLLED_BACK
    clean(house)


def test_a_transaction_that_only_acknowledges_much_asks_for_room_too() -> None:
    house = house_for()
    client = house.client()
    producer = client.produce("in", b"s" * 16)
    for number in range(4):
        client.put(producer, *[b"%d" % number] * 256)
    channel = client.consume("in", window=2_000)
    tx = Tx(client)
    for tag in range(1, 1_024, 2):
        tx.ack(channel, tag, tag)
    house.log.room_bytes = 15_000
    assert tx.commit() is None
    assert house.log.asked[0][0] > 512 * 64
    house.log.answer()
    house.rest()
    assert client.code == FULL
    clean(house)


def test_what_was_announced_as_small_is_checked_where_it_is_placed() -> None:
    house = house_for()
    with pytest.raises(AddressFullError), house.core.release_queue.atomic_batch(20_000):
        raise AssertionError("it began")


@pytest.mark.parametrize("room", [False, True])
def test_preparing_and_deciding_a_large_one_wait_for_room(room: bool) -> None:
    house = house_for()
    client = house.client()
    consumer = client.consume("out")
    tx = Tx(client)
    tx.send("out", LARGE)
    house.log.room_bytes = 1 << 30 if room else 5_000
    client.call("prepare", transaction=1, sent=1, acked=0, xid=b"x")
    house.log.answer()
    house.rest()
    assert client.code == (0 if room else FULL)
    assert len(house.core.transactions.two_phase) == room
    if not room:
        clean(house)
        return
    house.log.room_bytes = 5_000
    client.call("commit_prepared", xid=b"x")
    house.log.answer()
    house.rest()
    assert client.code == BY_NAME["retry_transaction"].number
    house.log.room_bytes = 1 << 30
    client.call("commit_prepared", xid=b"x")
    house.log.answer()
    house.rest()
    assert client.code == 0
    assert client.bodies(consumer) == [LARGE]
    assert limits.PREPARED_MAX > 0
