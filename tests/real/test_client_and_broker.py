"""The client against a broker, over the loopback device and in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from meshq import Broker, Client, NotFoundError, UsageError, connect
from meshq.message import Message
from meshq.wire import Frame


@asynccontextmanager
async def clients(data_dir: Path | None) -> AsyncIterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    where = str(data_dir / "hq") if data_dir is not None else None
    async with (
        Broker("hq", data_dir=where, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]


@pytest.mark.parametrize("durable", [True, False])
async def test_what_is_sent_by_either_is_received_by_the_other(tmp_path: Path, durable: bool) -> None:
    async with clients(tmp_path if durable else None) as both:
        for sender, receiver in (both, both[::-1]):
            async with receiver.consumer("q", window=500) as consumer, sender.producer("q") as producer:
                for number in range(3_000):
                    extra = {"duplicate_id": f"{id(sender)}-{number}", "properties": {"n": number}}
                    await producer.send(b"%d" % number, **(extra if number % 2 else {}))  # type: ignore[arg-type]
                await producer.flush()
                await sender.send_many("q", [Message(b"3000", correlation_id="c"), b"3001"])
                got = []
                while len(got) < 3_002:
                    batch = await consumer.receive_many(200, timeout=10)
                    assert batch
                    got += batch
                    await consumer.ack(*batch)
                await consumer.ack(confirm=True)
            assert [delivery.body for delivery in got] == [b"%d" % number for number in range(3_002)]
            assert [delivery.sequence for delivery in got] == sorted({delivery.sequence for delivery in got})
            assert got[1].properties == {"n": 1}
            assert got[3_000].correlation_id == "c"
            statistics = await receiver.queue("q")
            assert (statistics.ready, statistics.delivering) == (0, 0)


async def test_a_duplicate_id_is_stored_once(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        for client in (far, near, far):
            await client.send("q", b"x", duplicate_id="the same")
        assert (await near.queue("q")).ready == 1


async def test_what_is_returned_comes_again_marked_and_what_was_only_prefetched_unmarked(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        await far.send_many("q", [b"0", b"1", b"2"])
        async with far.consumer("q") as consumer:
            first = await consumer.receive(timeout=10)
            assert first is not None
            await first.nack()
            second = await consumer.receive(timeout=10)
            assert second is not None
        async with near.consumer("q") as consumer:
            again = [await consumer.receive(timeout=10) for _ in range(3)]
        seen = [(delivery.body, delivery.redelivered) for delivery in again if delivery is not None]
        assert sorted(seen) == [(b"0", True), (b"1", True), (b"2", False)]


async def test_queues_are_created_listed_purged_and_deleted(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        for number in range(300):
            await far.create_queue(f"queue-with-a-long-name-{number:03}")
        assert await near.queues() == [f"queue-with-a-long-name-{number:03}" for number in range(300)]
        await near.create_address("news", routing="multicast")
        with pytest.raises(UsageError):
            await far.create_queue("news", routing="anycast")
        await far.send_many("queue-with-a-long-name-007", [b"x"] * 5)
        assert await near.purge_queue("queue-with-a-long-name-007") == 5
        await near.delete_queue("queue-with-a-long-name-007")
        with pytest.raises(NotFoundError):
            await far.queue("queue-with-a-long-name-007")


async def test_an_ack_that_crosses_the_end_of_its_consumer_is_no_violation(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        await far.send_many("q", [b"0", b"1"])
        kept = []
        with pytest.raises(NotFoundError):
            async with far.consumer("q") as consumer:
                kept += await consumer.receive_many(1, timeout=10)
                link = far._session.stream.link
                assert link is not None
                unread: list[Frame] = []
                receiver = link._receiver
                receiver.frames = unread.extend
                await near.delete_queue("q")
                # The news is on its way, and was not read.
                await kept[0].ack()
                far._session.stream.send_settles()
                far._session.stream.flush()
                receiver.frames = far._session.handle
                await near.queues()
                far._session.handle(unread)
                await trio.sleep_forever()
        await far.send("q", b"the connection goes on")
        assert far.statistics().connected == 1


async def test_a_broker_that_stops_is_told_apart_from_one_that_is_gone(tmp_path: Path) -> None:
    async with Broker("hq", data_dir=str(tmp_path / "hq"), acceptors=["tcp://127.0.0.1:0"]) as broker:
        url = broker.urls[0]
        async with connect(url) as client:
            await client.send("q", b"1")
            events = client.events()
            await broker.stop()
            async with Broker("hq", data_dir=str(tmp_path / "hq"), acceptors=[url]) as successor:
                await client.send("q", b"2")
                assert (await client.queue("q")).ready == 2
                seen = [type(await anext(events)).__name__ for _ in range(2)]
                assert seen == ["Disconnected", "FailedOver"]
                assert client.statistics().node_id == successor.node_id
