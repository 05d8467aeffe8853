"""What a broker tells of what happens in it, as a user sees it: as an iterator, and as messages."""

from __future__ import annotations

import pytest
import trio

from meshq import (
    Broker,
    BrokerStateChanged,
    Connected,
    ConsumerClosed,
    ConsumerCreated,
    Notification,
    QueueCreated,
    SettingsError,
    UsageError,
)


def named(events: list[Notification]) -> list[str]:
    return [event.state if isinstance(event, BrokerStateChanged) else event.kind for event in events]


async def test_an_iterator_tells_of_a_whole_life() -> None:
    broker = Broker("hq", data_dir=None, queues=["made"])
    events = broker.events()
    late: list[Notification] = []
    async with broker:
        later = broker.events()
        async with broker.client() as client, client.consumer("orders"):
            pass
    heard = [event async for event in events]
    assert named(heard) == [
        "starting", "queue_created", "active", "session_created", "queue_created", "consumer_created",
        "consumer_closed", "session_closed", "stopping", "stopped",
    ]  # fmt: skip
    late += [event async for event in later]
    assert late == heard[3:]
    assert [event async for event in broker.events()] == []
    assert all(event.timestamp > 1_600_000_000 for event in heard)


@pytest.mark.slow
async def test_an_iterator_waits_for_what_comes_and_forgets_what_nobody_takes() -> None:
    async with Broker("hq", data_dir=None) as broker, trio.open_nursery() as nursery:
        heard: list[Notification] = []
        events, idle = broker.events(), broker.events()

        async def watch() -> None:
            heard.extend([event async for event in events if isinstance(event, QueueCreated | ConsumerClosed)])

        nursery.start_soon(watch)
        async with broker.client() as client:
            for _ in range(3_000):
                async with client.consumer("q"):
                    pass
            await client.create_queue("orders")
        assert idle.missed == 2 + 3_000 * 2 + 2 - 4_096
        await broker.stop()
    assert len(heard) == 3_002


async def test_an_iterator_that_nobody_holds_is_forgotten_and_one_that_is_closed_hears_no_more() -> None:
    async with Broker("hq", data_dir=None) as broker, broker.client() as client:
        dropped = [(broker.events(), client.events()) for _ in range(10)]
        closed = broker.events()
        await client.create_queue("a")
        del dropped
        closed.close()
        await client.create_queue("b")
        assert named([event async for event in closed]) == ["queue_created"]
        del closed
        await client.create_queue("c")
        assert broker._event_bus._watchers == []
        broker._event_bus.emit(QueueCreated)
        client._watchers.happened(Connected(at=0.0, peer="", node_id=b"", node_name=""))
        assert client._watchers._sinks._sinks == []


async def test_messages_tell_of_it_to_clients_anywhere() -> None:
    async with Broker("hq", data_dir=None) as broker, broker.client() as watcher, broker.client() as client:
        filter = "notification IN ('queue_created', 'consumer_created', 'consumer_closed')"
        async with watcher.subscribe("activemq.notifications", filter=filter) as notifications:
            async with client.consumer("orders"):
                pass
            told = await notifications.receive_many(3, timeout=5)
            while len(told) < 3:
                told += await notifications.receive_many(3, timeout=5)
            assert [message.properties["notification"] for message in told] == [
                "queue_created", "consumer_created", "consumer_closed",
            ]  # fmt: skip
            assert {message.properties["queue"] for message in told} == {"orders"}
            assert not any(message.durable for message in told) and told[0].body == b""
        with pytest.raises(UsageError, match="nobody else sends to it"):
            await client.send("activemq.notifications", b"forged")
        with pytest.raises((UsageError, SettingsError)):
            async with client.consumer("activemq.notifications"):
                pytest.fail("it has no queue of that name")


async def test_records_are_frozen_and_say_what_their_messages_say() -> None:
    event = ConsumerCreated(
        timestamp=1.0, address="a", queue="q", session=1, user="", filter="", browse=False, consumers=1
    )
    with pytest.raises(AttributeError):
        event.queue = "other"  # type: ignore[misc]
    assert event.properties()["notification"] == "consumer_created" == event.kind
