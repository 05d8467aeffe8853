"""Clients of every face that send to two brokers at once, over real TCP."""

from __future__ import annotations

import asyncio

import pytest
import trio

from meshq import FanoutError, UsageError, aio, blocking, connect

PATIENCE_S = 60.0


@pytest.mark.real
@pytest.mark.slow
def test_a_client_of_every_face_sends_to_both_brokers_and_refuses_what_concerns_one() -> None:
    async def by_trio(url: str) -> None:
        with trio.fail_after(PATIENCE_S):
            async with connect(url) as client:
                await client.send("orders", b"trio")
                await client.flush()

    async def by_asyncio(url: str) -> None:
        async with asyncio.timeout(PATIENCE_S), aio.connect(url) as client:
            await client.send("orders", b"asyncio")
            await client.flush()
            with pytest.raises(UsageError, match="create_queue concerns one broker"):
                await client.create_queue("q")

    with (
        blocking.Broker("a", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as a,
        blocking.Broker("b", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as b,
    ):
        url = f"fanout:(static:({a.urls[0]},{b.urls[0]}))?fan_out_queues=true"
        trio.run(by_trio, url)
        asyncio.run(by_asyncio(url))
        with blocking.connect(url) as client:
            client.send("orders", b"threads")
            client.flush()
            assert [one.name for one in client.topology()] == ["a", "b"]
            with pytest.raises(UsageError, match="consumer concerns one broker"), client.consumer("orders"):
                pass
            with pytest.raises(UsageError, match="producer concerns one broker"), client.producer("orders"):
                pass
        for broker in (a, b):
            with broker.client() as there, there.consumer("orders") as consumer:
                got = [delivery.body for delivery in consumer.receive_many(10, timeout=10)]
                assert got == [b"trio", b"asyncio", b"threads"]
        b.stop()
        with blocking.connect(url, call_failover_timeout=2) as client, pytest.raises(FanoutError) as caught:
            client.send("orders", b"1")
        assert list(caught.value.errors) == [url.partition(",")[2].partition(")")[0]]
