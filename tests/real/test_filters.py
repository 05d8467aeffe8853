"""Filters from the application to the disk and back: over the loopback device and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from meshq import Broker, Client, Consumer, FilterError, Message, connect, limits


@asynccontextmanager
async def clients(data_dir: Path) -> AsyncIterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    async with (
        Broker("hq", data_dir=data_dir, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]


async def drain(consumer: Consumer, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    got: list[bytes] = []
    while len(got) < count:
        batch = await consumer.receive_many(count - len(got), timeout=10)
        assert batch, got
        got += [delivery.body for delivery in batch]
        await consumer.ack(*batch)
    await consumer.ack(confirm=True)
    return got


@pytest.mark.parametrize("which", [0, 1])
async def test_consumers_get_what_they_ask_for_and_the_rest_survives_a_restart(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client = both[which]
        regions = ["emea", "apac", "us"]
        await client.send_many(
            "orders",
            [
                Message(b"%d" % number, properties={"region": regions[number % 3], "amount": number})
                for number in range(300)
            ],
        )
        async with (
            client.consumer("orders", filter="region = 'emea' AND amount >= 150") as large,
            client.consumer("orders", filter="region = 'apac'", window=7) as apac,
        ):
            assert await drain(large, 50) == [b"%d" % number for number in range(150, 300, 3)]
            assert await drain(apac, 100) == [b"%d" % number for number in range(1, 300, 3)]
            assert await large.receive(timeout=0) is None
            await client.send("orders", b"late", properties={"region": "emea", "amount": 1_000})
            assert await drain(large, 1) == [b"late"]
            first = await apac.receive(timeout=0)
            assert first is None
        statistics = await client.queue("orders")
        assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (150, 0, 151)
    async with clients(tmp_path) as both:
        client = both[which]
        async with client.consumer("orders", filter="amount < 150 AND region <> 'us'") as small:
            assert await drain(small, 50) == [b"%d" % number for number in range(0, 150, 3)]
        async with client.consumer("orders") as everything:
            assert await drain(everything, 100) == [b"%d" % number for number in range(2, 300, 3)]


@pytest.mark.parametrize("which", [0, 1])
async def test_what_a_filtered_consumer_gives_back_comes_again_to_whoever_wants_it(tmp_path: Path, which: int) -> None:
    async with clients(tmp_path) as both:
        client = both[which]
        await client.send_many("q", [Message(b"%d" % number, properties={"n": number}) for number in range(6)])
        async with client.consumer("q", filter="n > 1") as consumer:
            one, two, *_ = [await consumer.receive(timeout=5) for _ in range(3)]
            assert one is not None and two is not None
            await two.ack()
            await one.nack()
            again = [await consumer.receive(timeout=5) for _ in range(2)]
            assert [delivery.body for delivery in again if delivery] == [b"5", b"2"]
            assert again[1] is not None and again[1].redelivered
        async with client.consumer("q", filter="n IN (2, 5)") as other:
            assert await drain(other, 2) == [b"2", b"5"]
        async with client.consumer("q") as rest:
            assert await drain(rest, 3) == [b"0", b"1", b"4"]


async def test_two_requesters_on_one_reply_queue_each_get_their_own_reply(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        await near.create_queue("replies")

        async def serve() -> None:
            async with near.consumer("requests", ack="auto") as requests:
                async for request in requests:
                    await request.reply(b"re: " + request.body)

        async def ask(client: Client, name: str) -> None:
            async with client.consumer("replies", filter=f"correlation_id = '{name}'") as replies:
                for number in range(20):
                    body = f"{name} {number}".encode()
                    await client.send("requests", body, correlation_id=name, reply_to="replies")
                    reply = await replies.receive(timeout=10)
                    assert reply is not None and reply.body == b"re: " + body
                    await reply.ack()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            async with trio.open_nursery() as requesters:
                for number in range(6):
                    requesters.start_soon(ask, (far, near)[number % 2], f"r-{number}")
            nursery.cancel_scope.cancel()


async def test_headers_are_what_the_delivery_says(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        await near.send("h", b"12345", content_type="text/plain", correlation_id="c", durable=False)
        async with far.consumer("h") as consumer:
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None
            sent = delivery.timestamp
            condition = (
                f"timestamp = {sent!r} AND AMQTimestamp = {round(sent * 1000)} AND size = 5 "
                "AND priority = 4 AND NOT durable AND AMQDurable = 'NON_DURABLE' AND address = 'h' "
                "AND content_type = 'text/plain' AND correlation_id = 'c' AND expiration IS NULL AND group IS NULL"
            )
        async with near.consumer("h", filter=condition) as consumer:
            assert await drain(consumer, 1) == [b"12345"]


async def test_a_filter_that_is_none_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async with clients(tmp_path) as both:
        for client in both:
            with pytest.raises(FilterError, match="at column 10 ") as caught:
                client.consumer("q", filter="region = = 'emea'")
            assert caught.value.column == 10


async def test_a_broker_refuses_what_a_client_has_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with clients(tmp_path) as both:
        monkeypatch.setattr("meshq.client.receive._receiving_calls.check_consumer", lambda *_, filter, **__: filter)
        for client in both:
            with pytest.raises(FilterError, match="at column 10 ") as caught:
                async with client.consumer("q", filter="region = = 'emea'"):
                    raise AssertionError
            assert (caught.value.column, caught.value.outcome) == (0, "not_done")
            await client.flush()


async def test_a_backlog_is_put_to_a_filter_in_steps_between_which_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 256)
    async with clients(tmp_path) as (far, near):
        for start in range(0, 10_000, 250):
            await near.send_many("q", [Message(b"", properties={"n": number}) for number in range(start, start + 250)])
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            # The search begins before the consumer is open, and may be over by then.
            nursery.start_soon(count_turns)
            async with far.consumer("q", filter="n = 9999") as consumer:
                delivery = await consumer.receive(timeout=10)
                assert delivery is not None and delivery.properties == {"n": 9_999}
            nursery.cancel_scope.cancel()
        assert turns >= 20
