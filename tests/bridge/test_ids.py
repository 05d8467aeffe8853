"""By what a target knows a bridged message again, and what becomes of its sender's duplicate id."""

from __future__ import annotations

import pytest
import trio

from meshq import limits
from meshq.message import Message
from meshq.settings import AddressSettings
from tests.bridge.kit import World, bridge_of, bridge_to, doubled, numbered, until, world


def some_with_ids(count: int) -> list[Message]:
    """Different messages, every second of which has a duplicate id."""
    return [Message(body, duplicate_id=b"id " + body if int(body) % 2 else None) for body in numbered(count)]


BOTH = pytest.mark.parametrize("durable", [True, False])


@BOTH
async def test_a_message_arrives_with_its_senders_duplicate_id_or_with_none(durable: bool) -> None:
    async with world(durable=durable) as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", [Message(b"1", duplicate_id=b"mine", correlation_id="c"), b"2"])
        async with made.dial("far") as client, client.consumer("in") as consumer:
            first, second = await consumer.receive(), await consumer.receive()
        assert first is not None and second is not None
        assert (first.duplicate_id, first.correlation_id, second.duplicate_id) == (b"mine", "c", None)


@BOTH
async def test_a_message_that_goes_from_a_to_b_to_a_to_b_is_no_duplicate(durable: bool) -> None:
    async with world(durable=durable) as made:
        await made.start("a", lambda: [*bridge_to("b", "1", queue="x", forwarding_address="x")()])
        await made.start("b", lambda: [*bridge_to("a", "2", queue="x", forwarding_address="y")()])
        await made.send("a", "x", some_with_ids(20))
        await until(lambda: _has(made, "a", "y", 20))
        # The second lap, by hand.
        async with made.here("a") as client:
            await client.move_messages("y", "x")
        await until(lambda: _has(made, "a", "y", 20))
        assert sorted(await made.drain("a", "y")) == sorted(numbered(20))
        for name in ("a", "b"):
            assert made.brokers[name].statistics().duplicates == 0


@BOTH
async def test_two_bridges_in_a_ring_lose_nothing_in_any_lap(durable: bool) -> None:
    async with world(durable=durable) as made:
        await made.start("a", bridge_to("b", queue="x", forwarding_address="x"))
        await made.start("b", bridge_to("a", queue="x", forwarding_address="x"))
        await made.send("a", "x", some_with_ids(20))
        # Five laps at least.
        await until(lambda: bridge_of(made.brokers["b"]).statistics().carried >= 100)
        for name in ("a", "b"):
            bridge_of(made.brokers[name]).pause()
        await until(lambda: bridge_of(made.brokers["a"]).statistics().state == "paused")
        await until(lambda: bridge_of(made.brokers["b"]).statistics().state == "paused")
        left = [*await made.drain("a", "x"), *await made.drain("b", "x")]
        assert sorted(left) == sorted(numbered(20))


@BOTH
async def test_different_messages_of_two_addresses_with_one_duplicate_id_are_both_carried(durable: bool) -> None:
    async with world(durable=durable) as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        for address in ("one", "two"):
            await made.send("near", address, [Message(address.encode(), duplicate_id="the same")])
        async with made.here("near") as client:
            for address in ("one", "two"):
                assert await client.move_messages(address, "out") == 1
        assert sorted(await made.drain("far", "in")) == [b"one", b"two"]


async def test_a_source_in_memory_with_a_fixed_node_id_repeats_no_ids_in_its_next_life() -> None:
    async with world(durable=False) as made:
        await made.start("far")
        await made.start("near", bridge_to("far"), node_id=bytes(range(16)))
        await made.send("near", "out", numbered(10))
        await until(lambda: _has(made, "far", "in", 10))
        await made.kill("near")
        await made.start("near")
        await made.send("near", "out", numbered(10, 10))
        assert sorted(await made.drain("far", "in")) == sorted(numbered(20))


async def test_a_store_begun_anew_with_a_fixed_node_id_repeats_no_ids() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"), node_id=bytes(range(16)))
        await made.send("near", "out", numbered(10))
        await until(lambda: _has(made, "far", "in", 10))
        await made.stop("near")
        await made.start("near", data_dir="/another")
        await made.send("near", "out", numbered(10, 10))
        assert sorted(await made.drain("far", "in")) == sorted(numbered(20))


async def test_what_is_not_durable_repeats_no_ids_after_a_kill() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        for life in range(3):
            await made.send(
                "near", "out", [Message(b"%d" % n, durable=False) for n in range(life * 10, life * 10 + 10)]
            )
            await until(lambda life=life: _has(made, "far", "in", life * 10 + 10))
            await made.kill("near")
            await made.start("near")
        assert sorted(await made.drain("far", "in")) == sorted(numbered(30))


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False])
async def test_what_was_sent_and_not_acknowledged_goes_again_and_is_stored_once(durable: bool) -> None:
    """The replies are lost and the source is killed, many times over: its transformer's fresh messages, too."""
    bodies = numbered(300)

    def fresh(message: Message) -> Message:
        return Message(message.body, durable=message.durable)

    async with world() as made:
        await made.start("far", data_dir="/data" if durable else None)
        await made.start("near", bridge_to("far", window=50, transformer=fresh))
        await made.send("near", "out", bodies)
        for _ in range(8):
            before = await made.count("far", "in")
            await until(lambda before=before: _has_more(made, "far", "in", before))
            made.network.cut("far", "near")
            await trio.sleep(0.02)
            await made.kill("near")
            made.network.heal()
            await made.start("near")
        await until(lambda: _has(made, "near", "out", 0))
        got = await made.drain("far", "in")
        assert doubled(got) == {}
        assert sorted(got) == sorted(bodies)
        if durable:
            assert made.brokers["far"].statistics().duplicates > 0


async def test_without_duplicate_detection_what_goes_again_is_stored_again() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", use_duplicate_detection=False))
        made.network.cut("far", "near")
        await made.send("near", "out", [b"1", Message(b"2", duplicate_id="mine")])
        await trio.sleep(1)
        made.network.heal()
        await made.send("near", "out", [b"3"])
        await until(lambda: _has(made, "far", "in", 3))
        # The replies are lost, and with the source its session, by which they would be known.
        made.network.cut("far", "near")
        await made.send("near", "out", [b"4", Message(b"5", duplicate_id="mine too")])
        await until(lambda: _has(made, "far", "in", 5))
        await made.kill("near")
        made.network.heal()
        await made.start("near")
        await until(lambda: _has(made, "near", "out", 0))
        assert sorted(await made.drain("far", "in")) == [b"1", b"2", b"3", b"4", b"4", b"5", b"5"]


async def test_a_senders_duplicate_id_goes_along_without_duplicate_detection() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", use_duplicate_detection=False))
        await made.send("near", "out", [Message(b"1", duplicate_id=b"mine"), b"2"])
        async with made.dial("far") as client, client.consumer("in") as consumer:
            got = [await consumer.receive(), await consumer.receive()]
        assert [delivery.duplicate_id for delivery in got if delivery is not None] == [b"mine", None]


async def test_a_message_that_has_all_it_may_have_finds_room_for_what_the_bridge_says() -> None:
    # As many properties as there may be, and the longest duplicate id.
    properties = {"p": "x" * (limits.PROPERTIES_BYTES_MAX - 6)}
    longest = b"i" * limits.DUPLICATE_ID_BYTES_MAX
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", [Message(b"1", properties=properties, duplicate_id=longest)])
        async with made.dial("far") as client, client.consumer("in") as consumer:
            delivery = await consumer.receive()
            assert delivery is not None
            assert (delivery.properties, delivery.duplicate_id) == (properties, longest)
        # It is still so after a restart of the target.
        await made.kill("far")
        await made.start("far")
        async with made.here("far") as client, client.consumer("in") as consumer:
            delivery = await consumer.receive()
            assert delivery is not None and delivery.duplicate_id == longest


async def _has(made: World, name: str, queue: str, count: int) -> bool:
    return await made.count(name, queue) == count


async def _has_more(made: World, name: str, queue: str, count: int) -> bool:
    return await made.count(name, queue) > count or not await made.count("near", "out")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_queue_that_goes_with_its_life_repeats_no_ids_in_the_next_one(end: str) -> None:
    async with world() as made:
        await made.start("far")
        settings = {"out": AddressSettings(auto_create_queues=False)}
        await made.start("near", bridge_to("far"), address_settings=settings)
        for life in range(2):
            async with made.here("near") as client:
                await client.create_queue("out", durable=False)
            await made.send("near", "out", numbered(10, life * 10))
            await until(lambda: _has(made, "near", "out", 0))
            await made.kill("near") if end == "kill" else await made.stop("near")
            await made.start("near")
        assert sorted(await made.drain("far", "in")) == sorted(numbered(20))
