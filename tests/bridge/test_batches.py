"""What a bridge has received together: it goes in pieces, of which some are taken, refused or rejected."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio

from meshq import AddressSettings, Client, UsageError, limits
from meshq.message import Message
from tests.bridge.kit import World, bridge_of, bridge_to, doubled, numbered, until, world
from tests.bridge.test_refusals import COUNTING, SECURITY, bounded
from tests.process import SlowThreads

LOGIN = {"user": "b", "password": "secret"}
BAD = Message(b"bad", reply_to="other")


async def _count(made: World, name: str, queue: str, least: int) -> bool:
    return await made.count(name, queue) >= least


async def diverted(client: Client, *addresses: str) -> None:
    """What is sent to these addresses stands in the queue ``out``, with the address that it was sent to."""
    for address in addresses:
        await client.create_divert(address, address=address, forwarding_address="out", exclusive=True)


async def test_a_message_that_is_refused_in_the_middle_of_a_piece_mixes_up_none_of_the_others() -> None:
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        # More than one frame, of which the first is taken and the others not.
        await made.start("near", bridge_to("far", **LOGIN, retry_interval=5, use_duplicate_detection=False))
        await made.send("near", "out", [*numbered(400), BAD, *numbered(400, 400)])
        await until(lambda: _count(made, "far", "in", 800))
        bridge_of(made.brokers["near"]).pause()
        assert await made.count("near", "out") == 1
        assert sorted(await made.drain("far", "in")) == sorted(numbered(800))


async def test_how_often_a_target_that_refuses_is_asked_is_bounded() -> None:
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        await made.start("near", bridge_to("far", **LOGIN, retry_interval=1_000))
        bad = [BAD] * 500
        await made.send("near", "out", [BAD])
        await trio.sleep(10)
        # One message that is refused is not looked into.
        assert made.brokers["far"].statistics().requests_forbidden == 1
        await made.send("near", "out", bad)
        # It would wait for long before it asks again.
        bridge_of(made.brokers["near"]).pause()
        await trio.sleep(1)
        bridge_of(made.brokers["near"]).resume()
        await trio.sleep(10)
        # The others that were refused with it are looked into, but not down to each of them.
        assert 60 <= made.brokers["far"].statistics().requests_forbidden <= 70


@pytest.mark.slow
@pytest.mark.parametrize(("window", "most"), [(2_000, 1_000), (300, 300)])
async def test_no_more_than_a_thousand_messages_are_carried_before_what_became_of_them_is_known(
    window: int, most: int
) -> None:
    together: Counter[float] = Counter()

    def watched(message: Message) -> Message:
        # What is received together is transformed at one moment.
        together[trio.current_time()] += 1
        return message

    async with world() as made:
        made.threads["near"] = SlowThreads()
        await made.start("far")
        await made.start("near", bridge_to("far", window=window, transformer=watched))
        made.network.cut("near", "far")
        await made.send("near", "out", numbered(3_000))
        made.network.heal()
        await until(lambda: _count(made, "far", "in", 3_000))
        assert max(together.values()) == most
        assert await made.drain("far", "in") == numbered(3_000)


async def test_a_full_target_is_asked_once_and_what_it_has_no_room_for_is_not_looked_into() -> None:
    async with world() as made:
        await made.start("far", address_settings=bounded(1))
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far", retry_interval=1_000))
        await made.send("near", "out", numbered(200))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().state == "waiting")
        assert bridge.statistics().refused == 200


@pytest.mark.parametrize("forwarding", ["in", None])
async def test_what_all_goes_one_way_and_is_refused_stays_in_its_order_behind_what_was_sent(
    forwarding: str | None,
) -> None:
    """Whatever address the messages had before."""
    async with world() as made:
        address = forwarding or "out"
        full = AddressSettings(max_size_messages=1, full_policy="fail")
        await made.start("far", address_settings={address: full})
        await made.send("far", address, [b"first"])
        about = {"forwarding_address": forwarding, "retry_interval": 50}
        await made.start("near", bridge_to("far", **about), queues=["out"])
        bridge = bridge_of(made.brokers["near"])
        bridge.pause()
        async with made.here("near") as client:
            if forwarding is not None:
                await diverted(client, "elsewhere")
            await client.send_many("elsewhere" if forwarding is not None else "out", numbered(10))
        bridge.resume()
        await until(lambda: bridge.statistics().state == "waiting")
        # Nothing of it is put off: others may have it at once, as it stands.
        async with made.here("near") as client:
            found = await client.queue("out")
            assert (found.ready, found.delayed, found.delivering) == (10, 0, 0)
        await made.send("near", "out", numbered(10, 10))
        assert await made.drain("far", address, quiet=200) == [b"first", *numbered(20)]


async def test_what_is_behind_a_refused_message_does_not_wait_for_it() -> None:
    async with world() as made:
        await made.start("far", security=SECURITY, queues=["in", "other"])
        await made.start("near", bridge_to("far", **LOGIN, retry_interval=1_000))
        bridge = bridge_of(made.brokers["near"])
        with trio.fail_after(100):
            for first in range(0, 30, 10):
                await made.send("near", "out", [BAD, *numbered(10, first)])
                await until(lambda first=first: bridge.statistics().carried == first + 10)
        assert await made.drain("far", "in") == numbered(30)


async def test_what_a_transformer_ends_does_not_make_the_next_wait() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=lambda message: None, retry_interval=1_000))
        bridge = bridge_of(made.brokers["near"])
        with trio.fail_after(100):
            for count in (1, 2, 3):
                await made.send("near", "out", [b"x"])
                await until(lambda count=count: bridge.statistics().ended == count)


async def test_a_pause_between_two_pieces_sends_no_more_of_them() -> None:
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(duplicate_id_cache_size=5)})
        await made.start("near", bridge_to("far", retry_interval=1_000))
        made.network.delay("near", "far", 1, 1)
        await made.send("near", "out", numbered(100))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().carried >= 5)
        await trio.sleep(0.5)
        bridge.pause()
        await until(lambda: bridge.statistics().carried == 10)
        await trio.sleep(20)
        assert (await made.count("far", "in"), await made.count("near", "out")) == (10, 90)
        bridge.resume()
        assert await made.drain("far", "in") == numbered(100)


@pytest.mark.slow
async def test_no_more_is_sent_than_is_remembered_before_the_one_batch_behind_the_other_is_acknowledged() -> None:
    """Batches of a few messages, and a disk that takes its time to store what became of them."""
    async with world() as made:
        made.threads["near"] = SlowThreads()
        await made.start("far", address_settings={"in": AddressSettings(duplicate_id_cache_size=3)})
        await made.start("near", bridge_to("far", window=3))
        await made.send("near", "out", numbered(200))
        for life in range(1, 13):
            await until(lambda life=life: _count(made, "far", "in", 15 * life))
            await made.kill("near")
            await made.start("near")
        got = await made.drain("far", "in")
        assert (sorted(got), doubled(got)) == (sorted(numbered(200)), {})


async def test_how_much_a_target_remembers_is_asked_again_when_it_has_refused_what_was_known_of_it() -> None:
    """So many addresses in between that the first one's producer is closed, and its window is no longer vouched for."""
    names = [f"to.{number}" for number in range(70)]
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(duplicate_id_cache_size=50)})
        await made.start("near", bridge_to("far", window=20, forwarding_address=None))
        async with made.here("near") as client, made.here("far") as there:
            await diverted(client, "in", *names)
            for name in ("in", *names):
                await client.send(name, b"1")
            await until(lambda: bridge_of(made.brokers["near"]).statistics().carried == 71)
            await there.set_address_settings("in", AddressSettings(duplicate_id_cache_size=5))
            await client.send_many("in", numbered(10))
            await until(lambda: _count(made, "far", "in", 11))
            with pytest.raises(UsageError, match="window=5: 'in' remembers the last 4 duplicate ids"):
                await there.set_address_settings("in", AddressSettings(duplicate_id_cache_size=4))
        found = bridge_of(made.brokers["near"]).statistics()
        assert found.refused > 0 and found.carried == 81


# -- what can't be read, or be given to a transformer

LARGE = "/data/large"


async def send_each(made: World, *bodies: bytes) -> None:
    """Send each for itself, as only that goes in pieces where it is large."""
    async with made.here("near") as client:
        for body in bodies:
            await client.send("out", body)


@pytest.mark.parametrize("size", [2 * limits.LARGE_BLOCK_BYTES, limits.MESSAGE_BYTES_MAX + 1])
async def test_a_message_whose_body_cannot_be_read_is_rejected_and_holds_up_nobody(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", queues=["out"], address_settings=COUNTING)
        await send_each(made, b"before", random.Random(1).randbytes(size), b"after")
        await made.stop("near")
        disk = made.disks["near"]
        (name,) = disk.names(LARGE)
        disk.flip_bit(f"{LARGE}/{name}", 8 * (limits.LARGE_BLOCK_BYTES + 1_000))
        caplog.clear()
        await made.start("near", bridge_to("far", retry_interval=1_000))
        bridge = bridge_of(made.brokers["near"])
        with trio.fail_after(100):
            assert await made.drain("far", "in") == [b"before", b"after"]
        async with made.here("near") as client:
            # It was given back for good, with its queue's other messages gone.
            assert (await client.queue("dead")).ready == 1
        found = bridge.statistics()
        assert (found.carried, found.rejected, found.refused, found.failed) == (2, 1, 0, 0)
        assert "damaged" in str(found.last_error)
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "bridge_rejected"]
    assert "the bridge b" in record.message and "damaged" in record.message


async def test_what_cannot_be_given_to_a_transformer_is_rejected_and_holds_up_nobody() -> None:
    seen: list[bytes] = []

    def look(message: Message) -> Message:
        seen.append(message.body)
        return message

    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", transformer=look), address_settings=COUNTING)
        await send_each(made, b"1", bytes(limits.MESSAGE_BYTES_MAX + 1), b"2")
        assert await made.drain("far", "in") == [b"1", b"2"]
        assert await made.count("near", "dead") == 1
        found = bridge_of(made.brokers["near"]).statistics()
        assert (found.rejected, found.failed) == (1, 0)
        assert str(limits.MESSAGE_BYTES_MAX + 1) in str(found.last_error) and "transformer" in str(found.last_error)
        assert seen == [b"1", b"2"]


async def test_a_transformer_that_returns_neither_a_message_nor_none_fails() -> None:
    async with world() as made:
        await made.start("far")
        change = bridge_to("far", transformer=lambda message: "text")
        await made.start("near", change, address_settings=COUNTING)
        await made.send("near", "out", [b"1"])
        await until(lambda: _count(made, "near", "dead", 1))
        found = bridge_of(made.brokers["near"]).statistics()
        assert (found.failed, found.carried) == (3, 0)
        assert str(found.last_error) == "its transformer has returned str, neither a Message nor None"
