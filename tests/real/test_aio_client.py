"""The client and the broker for asyncio: tasks and sockets, no trio in sight."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshq import BusyError, CallTimeoutError, ClosedError, Message, MessageId, NotFoundError, SettingsError, UsageError
from meshq.aio import Broker, Delivery, connect
from meshq.client import Connected, Disconnected
from tests.real.aio_kit import asyncio_test, clients, received, until


@pytest.mark.parametrize("durable", [True, False])
@asyncio_test
async def test_what_is_sent_by_either_is_received_by_the_other(tmp_path: Path, durable: bool) -> None:
    async with clients(tmp_path if durable else None) as both:
        for sender, receiver in (both, both[::-1]):
            async with receiver.consumer("q", window=500) as consumer, sender.producer("q") as producer:
                for number in range(3_000):
                    extra: dict[str, Any] = {"duplicate_id": f"{id(sender)}-{number}", "properties": {"n": number}}
                    await producer.send(b"%d" % number, **(extra if number % 2 else {}))
                await producer.flush()
                assert producer.unconfirmed == 0
                await sender.send_many("q", (message for message in [Message(b"3000", correlation_id="c"), b"3001"]))
                got: list[Delivery] = []
                while len(got) < 3_002:
                    batch = await consumer.receive_many(200, timeout=10)
                    assert batch
                    got += batch
                    await consumer.ack(*batch)
                await consumer.ack(confirm=True)
            assert [delivery.body for delivery in got] == [b"%d" % number for number in range(3_002)]
            assert got[1].properties == {"n": 1}
            assert got[1].consumer is consumer
            assert got[3_000].correlation_id == "c"
            statistics = await receiver.queue("q")
            assert (statistics.ready, statistics.delivering) == (0, 0)


@asyncio_test
async def test_messages_are_sent_and_settled_one_by_one(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near):
        for number in range(20):
            await near.send("q", b"%d" % number, reply_to="answers")
        async with far.consumer("q") as consumer:
            number = 0
            async for delivery in consumer:
                assert delivery.body == b"%d" % number
                await delivery.reply(b"re: " + delivery.body)
                await (delivery.ack() if number % 2 else delivery.reject())
                number += 1
                if number == 20:
                    break
            await far.flush()
            statistics = await far.queue("q")
            assert (statistics.acknowledged, statistics.rejected) == (10, 10)
        assert await near.purge_queue("answers") == 20


@asyncio_test
async def test_what_was_only_prefetched_goes_back_unmarked_and_what_was_handed_over_marked(tmp_path: Path) -> None:
    async with clients(tmp_path) as both:
        for client in both:
            await client.send_many("q", [b"0", b"1", b"2", b"3", b"4"])
            async with client.consumer("q") as consumer:
                await (await received(consumer)).ack()
                await (await received(consumer)).nack()
                await received(consumer)
                assert consumer.statistics().received == 3
            assert (await client.queue("q")).ready == 4
            async with client.consumer("q") as consumer:
                again = [await received(consumer) for _ in range(4)]
                assert [(delivery.body, delivery.delivery_count) for delivery in again] == [
                    *((b"1", 2), (b"2", 2), (b"3", 1), (b"4", 1))
                ]
                await consumer.ack(*again, confirm=True)


@asyncio_test
async def test_an_automatic_acknowledgement_is_of_what_was_handed_over_and_of_nothing_else(tmp_path: Path) -> None:
    async with clients(tmp_path) as both:
        for client in both:
            await client.send_many("q", [b"%d" % number for number in range(400)])
            async with client.consumer("q", ack="auto") as consumer:
                assert len(await consumer.receive_many(7, timeout=10)) == 7
            assert (await client.queue("q")).ready == 393
            assert await client.purge_queue("q") == 393


@asyncio_test
async def test_requests_are_answered_and_subscribers_get_copies() -> None:
    async with clients(None) as (far, near):
        async with near.subscribe("news") as news:
            await far.create_queue("service")

            async def serve() -> None:
                async with near.consumer("service") as consumer:
                    async for delivery in consumer:
                        capitals = delivery.body.upper()
                        await delivery.reply(Message(capitals) if delivery.content_type else capitals)
                        await delivery.ack()

            server = asyncio.create_task(serve())
            answers = await asyncio.gather(*(far.request("service", b"%c" % (97 + n), timeout=10) for n in range(5)))
            assert [answer.body for answer in answers] == [b"A", b"B", b"C", b"D", b"E"]
            question = Message(b"z", content_type="a Message")
            assert [(await far.request("service", question, timeout=10)).body for _ in range(2)] == [b"Z", b"Z"]
            with pytest.raises(SettingsError, match="correlation_id='mine' is not allowed; allowed: left out of the"):
                await far.request("service", Message(b"x", correlation_id="mine"), timeout=10)
            server.cancel()
            with pytest.raises(asyncio.CancelledError):
                await server
            await far.send("news", b"rain")
            assert (await received(news)).body == b"rain"
        with pytest.raises(CallTimeoutError):
            await far.request("service", b"nobody", timeout=0.05)


@asyncio_test
async def test_several_clients_and_tasks_share_one_loop(tmp_path: Path) -> None:
    async with clients(tmp_path) as (far, near), connect(f"tcp://{far.statistics().peer}") as third:
        await asyncio.gather(*(client.send("q", b"x") for client in (far, near, third) for _ in range(50)))
        async with third.session() as other, other.consumer("q") as consumer:
            seen = 0
            while seen < 150:
                batch = await consumer.receive_many(100, timeout=10)
                assert batch
                seen += len(batch)
                await consumer.ack(*batch, confirm=True)
            assert other.statistics().session != third.statistics().session


@asyncio_test
async def test_a_second_receiver_is_refused_and_a_closed_consumer_ends_the_iteration() -> None:
    async with clients(None) as (far, _), far.consumer("q") as consumer:
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await consumer.receive()
        await consumer.close()
        await consumer.close()
        with pytest.raises(ClosedError):
            await waiting
        assert [delivery async for delivery in consumer] == []


@asyncio_test
async def test_a_receive_returns_when_its_time_is_up() -> None:
    async with clients(None) as both:
        for client in both:
            async with client.consumer("q") as consumer:
                assert await consumer.receive(timeout=0) is None
                assert await consumer.receive(timeout=0.05) is None
                assert await consumer.receive_many(5, timeout=0.05) == []
                with pytest.raises(SettingsError):
                    await consumer.receive(timeout=-1)


@asyncio_test
async def test_a_loop_of_calls_that_find_everything_here_lets_others_run() -> None:
    async with clients(None) as (far, _), far.producer("q") as producer, far.consumer("q", window=4_000) as consumer:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        before = turns
        for _ in range(640):
            await producer.send(b"x")
        assert turns - before >= 9
        await producer.flush()
        await until(lambda: consumer.statistics().ready == 640)
        before = turns
        for _ in range(640):
            await (await received(consumer)).ack()
        assert turns - before >= 18
        task.cancel()
        await asyncio.wait([task])


@asyncio_test
async def test_a_producer_waits_while_its_window_is_full_and_a_flush_is_of_what_was_taken() -> None:
    async with clients(None) as (far, _), far.producer("q", window=10) as producer:
        for number in range(500):
            await producer.send(b"x" * (number % 50) * 1_000, durable=bool(number % 3))
            assert producer.unconfirmed <= 10
        await far.flush()
        assert producer.statistics().unconfirmed == 0
        assert (await far.queue("q")).added == producer.statistics().sent == 500


@asyncio_test
async def test_events_and_statistics_tell_what_happens_to_the_connection() -> None:
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0], retry_interval=0.01)
        assert client.statistics().state == "new"
        events = client.events()
        async with client:
            assert type(await anext(events)) is Connected
            assert client.statistics().state == "connected"
            assert broker.statistics().connections == 1
            await broker.stop()
            assert type(await anext(events)) is Disconnected
        assert [event async for event in client.events()] == []


@asyncio_test
async def test_a_broker_runs_until_it_is_stopped() -> None:
    broker = Broker("hq", data_dir=None)
    with pytest.raises(UsageError):
        await broker.stop()
    running = asyncio.create_task(broker.run())
    await until(lambda: broker.state == "active")
    await broker.stop()
    await running
    assert broker.state == "stopped"


@asyncio_test
async def test_what_is_called_at_the_wrong_time_says_so() -> None:
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0])
        with pytest.raises(UsageError, match="async with"):
            await client.queues()
        async with client:
            with pytest.raises(UsageError, match="used before"):
                await client.__aenter__()
            with pytest.raises(NotFoundError):
                await client.delete_queue("none")
            with pytest.raises(UsageError, match="not open"):
                await client.producer("q").send(b"x")
        with pytest.raises(ClosedError):
            await client.queues()
        with pytest.raises(SettingsError, match="inproc"):
            connect("inproc://hq")


@asyncio_test
async def test_a_broker_is_watched_and_asked() -> None:
    node = Broker("hq", data_dir=None)
    events = node.events()
    async with node, node.client() as client:
        await client.create_queue("orders")
        assert (await client.explain_route("orders")).steps == node.explain_route("orders").steps != ()
        assert (await client.trace(MessageId(bytes(16), 1))).locations == ()
        kinds = [(await anext(events)).kind for _ in range(4)]
    assert kinds == ["broker_state_changed", "broker_state_changed", "session_created", "queue_created"]
    assert [event.kind async for event in events][-1] == "broker_state_changed"
