"""Who of a queue's consumers gets which message, from the application to the disk and back: over TCP and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from meshq import AddressSettings, Broker, Client, Consumer, Message, UsageError, blocking, connect

#: Over TCP, and in process.
BOTH = pytest.mark.parametrize("which", [0, 1])


@asynccontextmanager
async def clients(data_dir: Path, **settings: Any) -> AsyncIterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    address_settings = {"q": AddressSettings(**settings)}
    async with (
        Broker("hq", data_dir=data_dir, acceptors=["tcp://127.0.0.1:0"], address_settings=address_settings) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]


async def bodies(consumer: Consumer, count: int) -> list[bytes]:
    """The bodies of so many messages, which it then holds."""
    got: list[bytes] = []
    while len(got) < count:
        batch = await consumer.receive_many(count - len(got), timeout=10)
        assert batch, got
        got += [delivery.body for delivery in batch]
    return got


@BOTH
async def test_the_consumer_of_the_highest_priority_gets_all_that_it_has_room_for(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client, other = both[which], both[1 - which]
        async with other.consumer("q", priority=-5) as low, client.consumer("q", window=3) as high:
            await client.send_many("q", [b"%d" % number for number in range(5)])
            assert await bodies(high, 3) == [b"0", b"1", b"2"]
            assert await bodies(low, 2) == [b"3", b"4"]


@BOTH
async def test_an_exclusive_consumer_is_served_alone_and_the_next_one_takes_over(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client, other = both[which], both[1 - which]
        async with client.consumer("q", exclusive=True) as first, other.consumer("q", exclusive=True) as second:
            await client.send_many("q", [b"a", b"b"])
            assert await bodies(first, 2) == [b"a", b"b"]
            assert await second.receive(timeout=0) is None
            await first.close()
            assert await bodies(second, 2) == [b"a", b"b"]


@BOTH
async def test_a_group_stays_with_one_consumer_and_goes_on_to_the_next_after_it(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client, other = both[which], both[1 - which]
        async with client.consumer("q") as first, other.consumer("q") as second:
            await client.send_many("q", [Message(b"%d" % number, group="ab"[number % 2]) for number in range(10)])
            assert await bodies(first, 5) == [b"0", b"2", b"4", b"6", b"8"]
            assert await bodies(second, 5) == [b"1", b"3", b"5", b"7", b"9"]
            assert (await client.queue("q")).groups == 2
            await first.close()
            assert await bodies(second, 5) == [b"0", b"2", b"4", b"6", b"8"]
    async with clients(tmp_path) as both, both[which].consumer("q", ack="auto") as consumer:
        assert await bodies(consumer, 10) == [b"%d" % number for number in range(10)]


@BOTH
async def test_a_browse_shows_everything_takes_nothing_and_ends(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client, other = both[which], both[1 - which]
        await client.send_many("q", [Message(b"%d" % number, properties={"n": number}) for number in range(50)])
        async with other.consumer("q", window=3) as reader:
            held = await bodies(reader, 3)
            async with client.consumer("q", browse=True, window=7) as browse:
                shown = [delivery async for delivery in browse]
                assert [delivery.body for delivery in shown] == [b"%d" % number for number in range(50)]
                assert await browse.receive() is None and await browse.receive_many(5) == []
                for settle in (shown[0].ack, shown[0].nack, shown[0].reject, lambda: shown[0].ack(confirm=True)):
                    with pytest.raises(UsageError, match="only looks"):
                        await settle()
                assert held == [b"0", b"1", b"2"]
            async with client.consumer("q", browse=True, filter="n >= 48") as browse:
                assert [delivery.body async for delivery in browse] == [b"48", b"49"]
            statistics = await client.queue("q")
            assert (statistics.ready, statistics.delivering, statistics.consumers) == (47, 3, 1)
        async with client.consumer("nothing", browse=True) as browse:
            assert await browse.receive(timeout=10) is None


def test_threads_have_all_of_this_too() -> None:
    with (
        blocking.Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker,
        blocking.connect(broker.urls[0]) as client,
    ):
        client.send_many("q", [Message(b"%d" % number, group="ab"[number % 2]) for number in range(20)])
        with client.consumer("q", browse=True, window=3) as browse:
            shown = list(browse)
            assert [delivery.body for delivery in shown] == [b"%d" % number for number in range(20)]
            assert browse.receive() is None and browse.receive_many(5) == []
            for settle in (shown[0].ack, shown[0].nack, lambda: shown[0].ack(confirm=True)):
                with pytest.raises(UsageError, match="only looks"):
                    settle()
        with client.consumer("q", priority=3, window=1) as high, client.consumer("q", exclusive=True) as alone:
            first = high.receive(timeout=10)
            assert first is not None and first.body == b"0" and alone.receive(timeout=0) is None
            first.ack()
            assert [delivery.body for delivery in alone.receive_many(1, timeout=10)] == [b"1"]


@BOTH
async def test_a_queue_keeps_the_last_value_of_each_key_also_over_a_restart(tmp_path: Path, which: int) -> None:
    prices = [("eur", 1), ("usd", 2), ("eur", 3), ("usd", 4), ("gbp", 5)]
    messages = [Message(b"%d" % price, properties={"k": currency}) for currency, price in prices]
    async with clients(tmp_path, default_last_value_key="k") as both:
        await both[which].send_many("q", messages[:3])
        for message in messages[3:]:
            await both[which].send_many("q", [message])
        statistics = await both[which].queue("q")
        assert (statistics.ready, statistics.replaced, statistics.added) == (3, 2, 5)
    async with clients(tmp_path, default_last_value_key="k") as both, both[which].consumer("q") as consumer:
        assert await bodies(consumer, 3) == [b"3", b"4", b"5"]
        assert await consumer.receive(timeout=0) is None
