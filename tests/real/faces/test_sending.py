"""Sending, over every face: what is confirmed is stored, in order, with all its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from meshq import ClosedError, Message, SettingsError, UsageError
from tests.real.faces.kit import WAIT_S, Face, promise, received


@pytest.mark.parametrize("durable", [True, False])
@promise
async def test_what_is_sent_is_received_whole_and_in_order(face: Face, tmp_path: Path, durable: bool) -> None:
    async with face.clients(data_dir=tmp_path / "hq" if durable else None) as (sender, receiver):
        async with receiver.consumer("q", window=100) as consumer, sender.producer("q") as producer:
            for number in range(500):
                extra: dict[str, Any] = {"duplicate_id": f"id-{number}", "properties": {"n": number}}
                await producer.send(b"%d" % number, **(extra if number % 2 else {}))
            await producer.flush()
            assert producer.unconfirmed == 0
            await sender.send_many("q", (message for message in [Message(b"500", correlation_id="c"), b"501"]))
            got: list[Any] = []
            while len(got) < 502:
                batch = await consumer.receive_many(50, timeout=WAIT_S)
                assert 0 < len(batch) <= 50
                got += batch
                await consumer.ack(*batch)
            await consumer.ack(confirm=True)
        assert [delivery.body for delivery in got] == [b"%d" % number for number in range(502)]
        assert [delivery.sequence for delivery in got] == sorted({delivery.sequence for delivery in got})
        assert got[1].properties == {"n": 1} and got[1].duplicate_id == b"id-1"
        assert got[1].consumer == consumer
        assert got[500].correlation_id == "c"
        statistics = await receiver.queue("q")
        assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (0, 0, 502)


@promise
async def test_every_part_of_a_message_arrives(face: Face) -> None:
    parts: dict[str, Any] = {
        "properties": {"region": "emea", "n": 7, "x": 1.5, "yes": True, "raw": b"\x00", "none": None},
        "durable": False,
        "priority": 7,
        "ttl": 60,
        "duplicate_id": "twice",
        "correlation_id": "c-1",
        "reply_to": "answers",
        "group": "g",
        "content_type": "text/plain",
    }
    async with face.clients() as (sender, receiver):
        async with sender.producer("q") as producer:
            await producer.send(b"body", **parts)
        # A duplicate id that is known is success, and stored once.
        await sender.send("q", b"body", **parts)
        await sender.send("q", Message(b"body", **{**parts, "duplicate_id": "other"}))
        assert (await receiver.queue("q")).ready == 2
        async with receiver.consumer("q") as consumer:
            for _ in range(2):
                delivery = await received(consumer)
                for name, value in parts.items():
                    if name not in ("ttl", "duplicate_id"):
                        assert getattr(delivery, name) == value, name
                assert 50 < delivery.expiration - delivery.timestamp < 70
                assert (delivery.address, delivery.queue, delivery.redelivered) == ("q", "q", False)
                await delivery.ack()


@promise
async def test_higher_priorities_come_first_and_a_delay_is_waited_for(face: Face) -> None:
    async with face.clients() as (sender, receiver):
        await sender.send("q", b"later", delay=0.1)
        await sender.send("q", b"low", priority=1)
        await sender.send("q", b"high", priority=9)
        async with receiver.consumer("q", window=1) as consumer:
            seen = []
            for _ in range(3):
                delivery = await received(consumer)
                seen.append(delivery.body)
                await delivery.ack()
        assert seen == [b"high", b"low", b"later"]


@promise
async def test_a_producer_waits_while_its_window_is_full(face: Face) -> None:
    async with face.clients() as (client, _), client.producer("q", window=10) as producer:
        for number in range(300):
            await producer.send(b"x" * (number % 50) * 1_000, durable=bool(number % 3))
            assert producer.unconfirmed <= 10
        await producer.flush()
        statistics = producer.statistics()
        assert (statistics.address, statistics.state, statistics.unconfirmed) == ("q", "open", 0)
        assert (await client.queue("q")).added == statistics.sent == 300
        assert repr(producer) == "<Producer 'q' open unconfirmed=0>"


@promise
async def test_a_flush_of_the_client_is_of_what_its_producers_have_taken(face: Face) -> None:
    async with face.clients() as (client, other), client.producer("q") as producer:
        for _ in range(300):
            await producer.send(b"x")
        await client.flush()
        assert (await other.queue("q")).ready == 300
        assert (producer.statistics().unconfirmed, producer.statistics().sent) == (0, 300)


@promise
async def test_several_at_once_send_by_one_producer_and_one_client(face: Face) -> None:
    async with face.clients() as (client, other), client.producer("q", window=50) as producer:

        def sending(name: bytes) -> Any:
            async def send() -> None:
                for number in range(60):
                    await producer.send(b"%s %d" % (name, number))
                    if number % 20 == 0:
                        await client.send("alone", name)

            return send

        names = (b"ann", b"bob", b"cid")
        await face.together(*map(sending, names))
        await producer.flush()
        async with other.consumer("q", ack="auto") as consumer:
            seen: list[bytes] = []
            while len(seen) < 180:
                seen += [delivery.body for delivery in await consumer.receive_many(100, timeout=WAIT_S)]
        for name in names:
            assert [body for body in seen if body.startswith(name)] == [b"%s %d" % (name, n) for n in range(60)]
        assert (await other.queue("alone")).ready == 9


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body in pieces that are made one by one."""
    for start in range(0, len(body), 200_000):
        yield body[start : start + 200_000]


@promise
async def test_a_large_body_is_streamed_and_read_while_its_message_is_held(face: Face, tmp_path: Path) -> None:
    body = bytes(range(256)) * 2_000
    async with face.clients(data_dir=tmp_path / "hq") as (sender, receiver):
        await sender.send("q", body)
        await sender.send("q", (body[start : start + 100_000] for start in range(0, len(body), 100_000)))
        await sender.send("q", pieces(body))
        async with receiver.consumer("q") as consumer:
            for _ in range(3):
                delivery = await received(consumer)
                assert delivery.size == len(body)
                async with delivery.open() as stream:
                    assert repr(stream).startswith("<BodyStream ")
                    chunks = [chunk async for chunk in stream]
                assert b"".join(chunks) == await delivery.read() == body
                await delivery.ack(confirm=True)


@promise
async def test_what_is_not_allowed_is_said_at_once_and_changes_nothing(face: Face) -> None:
    async with face.clients() as (client, _), client.producer("q") as producer, client.consumer("q") as consumer:
        for wrong in (
            lambda: producer.send("text"),
            lambda: producer.send(b"x", properties={"a": object()}),
            lambda: producer.send(b"x", durable=1),
            lambda: producer.send(b"x", ttl=-1.0),
            lambda: producer.send(Message(b"x"), priority=9),
            lambda: consumer.receive(timeout=-1),
            lambda: consumer.receive_many(0),
            lambda: consumer.nack(delay=-1),
            lambda: client.send("q", b"x", delay="3"),
            lambda: client.send("q", Message(b"x"), correlation_id="c"),
            lambda: client.send_many("q", [b"x", "y"]),
            lambda: client.request("q", b"x", timeout=0),
        ):
            with pytest.raises(SettingsError):
                await wrong()
        for wrong in (
            lambda: client.producer("q", window=0),
            lambda: client.consumer("q", browse="yes"),
            lambda: client.subscribe("q", durable=True),
            lambda: client.transaction(xid=b""),
        ):
            with pytest.raises(SettingsError):
                wrong()
        assert (await client.queue("q")).added == 0


@promise
async def test_before_and_after_its_block_a_thing_says_what_is_wrong(face: Face) -> None:
    async with face.broker() as broker:
        client = face.client(broker)
        assert client.statistics().state == "new"
        with pytest.raises(UsageError, match=f"the client is not open: use it in {face.BLOCK}"):
            await client.queues()
        async with client:
            consumer, producer, transaction = client.consumer("q"), client.producer("q"), client.transaction()
            for early in (consumer.receive, lambda: producer.send(b"x"), producer.flush):
                with pytest.raises(UsageError, match=f"is not open: use it in {face.BLOCK}"):
                    await early()
            with pytest.raises(UsageError, match="the transaction is new"):
                await transaction.commit()
            async with consumer, producer:
                await producer.send(b"x")
                delivery = await received(consumer)
                with pytest.raises(UsageError, match="used before"):
                    await client.__aenter__()
            for late in (consumer.receive, lambda: producer.send(b"x"), producer.flush):
                with pytest.raises(ClosedError):
                    await late()
            with pytest.raises(UsageError, match="used before"):
                await consumer.__aenter__()
            assert client.statistics().state == "connected"
        for late in (client.queues, producer.flush, lambda: client.send("q", b"x"), client.flush):
            with pytest.raises(ClosedError):
                await late()
        for silent in (client.close, consumer.close, producer.close):
            await silent()
        assert client.statistics().state == "closed"
        assert delivery.body == b"x"
