"""Bridges between two brokers on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Bridge, Broker, Client, connect
from meshq.message import Message


async def all_of(client: Client, queue: str, count: int) -> list[tuple[bytes, bytes | None]]:
    """So many messages of a queue, acknowledged: body and duplicate id."""
    found: list[tuple[bytes, bytes | None]] = []
    async with client.consumer(queue) as consumer:
        while len(found) < count:
            batch = await consumer.receive_many(count, timeout=20)
            assert batch, f"{len(found)} of {count}"
            found += [(delivery.body, delivery.duplicate_id) for delivery in batch]
            await consumer.ack(*batch)
        await consumer.ack(confirm=True)
    return found


async def left_in(client: Client, queue: str) -> int:
    """Messages that wait or are under way."""
    statistics = await client.queue(queue)
    return statistics.ready + statistics.delivering


@asynccontextmanager
async def bridged(tmp_path: Path, **settings: object) -> AsyncIterator[tuple[Broker, Broker]]:
    """A broker with a bridge from its queue ``out`` to another broker."""
    async with Broker("far", data_dir=tmp_path / "far", acceptors=["tcp://127.0.0.1:0"]) as far:
        bridge = Bridge("b", queue="out", target="far", **settings)  # type: ignore[arg-type]
        connectors = {"far": far.urls[0]}
        async with Broker("near", data_dir=tmp_path / "near", connectors=connectors, services=[bridge]) as near:
            yield near, far


async def test_what_is_put_into_the_queue_arrives_with_all_it_has(tmp_path: Path) -> None:
    async with bridged(tmp_path, forwarding_address="in") as (near, far), near.client() as here, far.client() as there:
        await here.send(
            "out", b"1", properties={"n": 1}, correlation_id="c", reply_to="r", content_type="t", duplicate_id="mine"
        )
        await here.send_many("out", [b"%d" % number for number in range(2, 3_000)])
        async with there.consumer("in") as consumer:
            first = await consumer.receive(timeout=20)
            assert first is not None
            assert (first.body, first.properties, first.duplicate_id) == (b"1", {"n": 1}, b"mine")
            assert (first.correlation_id, first.reply_to, first.content_type, first.durable) == ("c", "r", "t", True)
            await first.ack()
        rest = await all_of(there, "in", 2_998)
        assert [body for body, _ in rest] == [b"%d" % number for number in range(2, 3_000)]
        assert {duplicate_id for _, duplicate_id in rest} == {None}


async def test_a_filter_chooses_and_a_transformer_changes_or_ends_a_message(tmp_path: Path) -> None:
    def change(message: Message) -> Message | None:
        return None if message.body == b"4" else Message(message.body * 2, properties=message.properties)

    settings = {"filter": "n > 2", "transformer": change}
    async with bridged(tmp_path, **settings) as (near, far), near.client() as here, far.client() as there:
        await here.send_many("out", [Message(b"%d" % n, properties={"n": n}) for n in range(6)])
        assert [body for body, _ in await all_of(there, "out", 2)] == [b"33", b"55"]
        assert {body for body, _ in await all_of(here, "out", 3)} == {b"0", b"1", b"2"}


@pytest.mark.parametrize("durable", [True, False])
async def test_a_transformer_that_fails_holds_up_nobody_and_its_messages_become_dead_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, durable: bool
) -> None:
    def change(message: Message) -> Any:
        if message.body == b"3":
            raise KeyError("a canary")
        return "text" if message.body == b"5" else message

    attempts = {"#": AddressSettings(dead_letter_address="dead", max_delivery_attempts=2)}
    bridge = Bridge("b", queue="out", target="inproc://far", transformer=change, retry_interval=0.01)
    directory = tmp_path / "near" if durable else None
    async with (
        Broker("far", data_dir=None) as far,
        Broker("near", data_dir=directory, services=[bridge], address_settings=attempts) as near,
        near.client() as here,
        far.client() as there,
    ):
        await here.send_many("out", [b"%d" % n for n in range(8)])
        assert [body for body, _ in await all_of(there, "out", 6)] == [b"0", b"1", b"2", b"4", b"6", b"7"]
        assert sorted(body for body, _ in await all_of(here, "dead", 2)) == [b"3", b"5"]
        assert bridge.statistics().carried == 6
        assert (near.state, far.state) == ("active", "active")
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [getattr(record, "event", "") for record in warnings] == ["bridge_returned"]
    assert "canary" not in caplog.text


async def test_a_bridge_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    bridge = Bridge("b", queue="out", target="inproc://later", retry_interval=0.01)
    async with Broker("near", data_dir=None, services=[bridge]) as near, near.client() as here:
        await here.send("out", b"x")
        async with Broker("later", data_dir=None), connect("inproc://later") as there:
            assert [body for body, _ in await all_of(there, "out", 1)] == [b"x"]
        assert (await here.queue("out")).ready == 0


BODY = b"".join(b"%8d" % number for number in range(220_000)) * 10


async def test_a_bridge_streams_what_is_larger_than_a_message(tmp_path: Path) -> None:
    async with bridged(tmp_path, forwarding_address="in") as (near, far), near.client() as here, far.client() as there:
        await here.send("out", b"before")
        await here.send("out", BODY, properties={"n": 1}, correlation_id="c")
        await here.send("out", BODY[:300_000])
        async with there.consumer("in") as consumer:
            first, large, last = [await consumer.receive(timeout=20) for _ in range(3)]
            assert first is not None and large is not None and last is not None
            assert (first.body, last.body) == (b"before", BODY[:300_000])
            assert (large.size, large.properties, large.correlation_id) == (len(BODY), {"n": 1}, "c")
            assert large.duplicate_id is None
            assert await large.read() == BODY
        with trio.fail_after(20):
            while await left_in(here, "out"):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.05)


async def test_what_a_transformer_cannot_be_given_is_rejected(tmp_path: Path) -> None:
    kept = bridged(tmp_path, forwarding_address="in", transformer=lambda message: message)
    async with kept as (near, far), near.client() as here, far.client() as there:
        await here.send("out", BODY)
        await here.send("out", b"after")
        assert [body for body, _ in await all_of(there, "in", 1)] == [b"after"]
        with trio.fail_after(20):
            while (await here.queue("out")).rejected != 1:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.05)
