"""Subscriptions, requests and paused queues over the loopback device, with and without async."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import meshq
from meshq import Broker, Client, connect


@asynccontextmanager
async def clients(data_dir: Path) -> AsyncIterator[tuple[Client, Client]]:
    """Two clients of a broker, over TCP."""
    async with (
        Broker("hq", data_dir=data_dir, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as client,
        connect(broker.urls[0]) as other,
    ):
        yield client, other


async def test_over_tcp_subscribers_requests_and_paused_queues_do_as_they_do_in_process(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, other):
        async with client.subscribe("news", filter="n = 1") as own, other.subscribe("news", name="alice") as named:
            await client.send("news", b"1", properties={"n": 1})
            await client.send("news", b"2")
            assert [message.body for message in [await own.receive(timeout=10)] if message] == [b"1"]
            assert [message.body for message in [await named.receive(timeout=10) for _ in "12"] if message] == [
                b"1", b"2",
            ]  # fmt: skip
            with pytest.raises(meshq.RefusedError, match="not shared"):
                async with client.subscribe("news", name="alice"):
                    raise AssertionError("it was let in")
        async with trio.open_nursery() as nursery, other.consumer("work") as consumer:

            async def answer() -> None:
                async for message in consumer:
                    await message.reply(message.body.upper())
                    await message.ack()

            nursery.start_soon(answer)
            answers = []

            async def ask(number: int) -> None:
                answers.append((await client.request("work", b"w%d" % number, timeout=10)).body)

            async with trio.open_nursery() as asking:
                for number in range(50):
                    asking.start_soon(ask, number)
            assert sorted(answers) == sorted(b"W%d" % number for number in range(50))
            nursery.cancel_scope.cancel()
        await client.pause_queue("work")
        await client.send("work", b"later")
        async with client.consumer("work") as consumer:
            assert await consumer.receive(timeout=0.05) is None
            await other.resume_queue("work")
            message = await consumer.receive(timeout=10)
            assert message is not None and message.body == b"later"
