"""What of a message a bridge carries, and what of its time to live."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import AddressSettings, limits
from meshq.client import Delivery
from meshq.message import Message
from tests.bridge.kit import bridge_to, until, world

ALL = Message(
    b"1",
    properties={"n": 1, "s": "ü"},
    priority=7,
    group="g",
    duplicate_id=b"d",
    correlation_id="c",
    reply_to="r",
    content_type="t",
    durable=False,
)


@pytest.mark.parametrize("changed", [False, True])
async def test_a_message_arrives_with_all_it_has(*, changed: bool) -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=(lambda message: message) if changed else None))
        await made.send("near", "out", [ALL, b"2"])
        async with made.dial("far") as client, client.consumer("in") as consumer:
            first, second = await consumer.receive(), await consumer.receive()
        assert first is not None and second is not None
        assert (first.body, first.properties, first.priority, first.group) == (b"1", {"n": 1, "s": "ü"}, 7, "g")
        assert (first.duplicate_id, first.correlation_id, first.reply_to) == (b"d", "c", "r")
        assert (first.content_type, first.durable, first.expiration) == ("t", False, None)
        assert (second.body, second.properties, second.priority, second.group) == (b"2", {}, 4, None)
        assert (second.durable, second.correlation_id, second.content_type) == (True, None, None)


@pytest.mark.slow
async def test_a_message_goes_on_with_what_is_left_of_its_time_to_live() -> None:
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(expiry_address="late")})
        await made.start("near", bridge_to("far"))
        made.network.cut("near", "far")
        began = trio.current_time()
        await made.send("near", "out", [Message(b"1", ttl=100)])
        await trio.sleep(60)
        made.network.heal()
        await until(lambda: _stands(made, "in"))
        assert trio.current_time() - began < 95
        # Each look is a connection.
        await trio.sleep_until(began + 98)
        await until(lambda: _stands(made, "late"))
        assert trio.current_time() - began == pytest.approx(100, abs=1)


async def _stands(made: object, queue: str) -> bool:
    return await made.count("far", queue) == 1  # type: ignore[attr-defined,no-any-return]


@pytest.mark.slow
async def test_small_and_large_messages_arrive_in_their_order() -> None:
    large = [bytes([number]) * (limits.MESSAGE_BYTES_MAX + number) for number in range(1, 3)]
    edge = b"e" * limits.MESSAGE_BYTES_MAX
    async with world() as made:
        await made.start("far")
        await made.start("near", queues=["out"])
        async with made.here("near") as client:
            for body in (b"1", large[0], large[1], b"2", edge):
                await client.send("out", body)
        await made.stop("near")
        await made.start("near", bridge_to("far"))
        async with made.here("far") as client, client.consumer("in") as consumer:
            for body in (b"1", large[0], large[1], b"2", edge):
                delivery = await consumer.receive()
                assert delivery is not None
                assert await delivery.read() == body
                await delivery.ack()


@pytest.mark.slow
async def test_a_large_message_that_is_refused_waits_and_goes_whole() -> None:
    body = bytes(limits.MESSAGE_BYTES_MAX + 1)
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(max_size_messages=1, full_policy="fail")})
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far"))
        async with made.here("near") as client:
            await client.send("out", body)
        await trio.sleep(1)
        assert await made.count("near", "out") == 1
        async with made.here("far") as client, client.consumer("in") as consumer:
            first = await consumer.receive()
            assert first is not None
            await first.ack()
            second = await consumer.receive()
            assert second is not None and await second.read() == body


async def test_what_stands_beside_messages_that_go_together_stays_with_each_of_them() -> None:
    """Some have the same, others do not; at the second broker a bridge's id stands in the place of their own."""
    kinds: list[dict[str, Any]] = [
        {},
        {"duplicate_id": b"%d"},
        {"properties": {"p": 1}},
        {"properties": {"p": 2}, "correlation_id": "c"},
        {"correlation_id": "c"},
        {"correlation_id": "d", "priority": 9},
        {"content_type": "text/plain", "group": "g", "duplicate_id": b"%d"},
    ]
    sent: list[bytes | Message] = []
    for number in range(40):
        about: dict[str, Any] = dict(kinds[number * 7 // 3 % len(kinds)])
        if "duplicate_id" in about:
            about["duplicate_id"] %= number
        sent.append(Message(b"%d" % number, **about))
    async with world() as made:
        await made.start("far")
        await made.start("middle", bridge_to("far", queue="in"))
        await made.start("near", bridge_to("middle"))
        rounds: list[list[bytes | Message]] = [
            [b"first"],
            sent,
            [Message(b"%d" % n, duplicate_id=b"x%d" % n) for n in range(20)],
        ]
        for messages in rounds:
            await made.send("near", "out", messages)
            got: list[Delivery] = []
            async with made.dial("far") as client, client.consumer("in") as consumer:
                while len(got) < len(messages):
                    got += await consumer.receive_many(100, timeout=20)
                await consumer.ack(*got, confirm=True)
            wanted = [one if isinstance(one, Message) else Message(one) for one in messages]
            found = {one.body: one for one in got}
            for message in wanted:
                one = found[message.body]
                assert (one.properties, one.duplicate_id) == (dict(message.properties or {}), message.duplicate_id)
                assert (one.correlation_id, one.content_type) == (message.correlation_id, message.content_type)
                assert (one.priority, one.group) == (message.priority, message.group)
