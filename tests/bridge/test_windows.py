"""How much a bridge has under way, and how much its target remembers."""

from __future__ import annotations

import pytest
import trio

from meshq import AddressSettings, Client, Message, UsageError
from tests.bridge.kit import World, bridge_of, bridge_to, doubled, numbered, until, world


def remembering(count: int) -> dict[str, AddressSettings]:
    """An address ``in`` that remembers so many duplicate ids."""
    return {"in": AddressSettings(duplicate_id_cache_size=count)}


async def _count(made: World, name: str, queue: str, least: int) -> bool:
    return await made.count(name, queue) >= least


@pytest.mark.slow
@pytest.mark.parametrize("remembered", [1, 7, 100])
async def test_what_goes_again_is_stored_once_where_little_is_remembered(remembered: int) -> None:
    """The replies are lost, and the source is killed."""
    async with world() as made:
        await made.start("far", address_settings=remembering(remembered))
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", numbered(20))
        await until(lambda: _count(made, "far", "in", 20))
        made.network.cut("far", "near")
        await made.send("near", "out", numbered(1_001, 20))
        await until(lambda: _count(made, "far", "in", 21))
        await trio.sleep(1)
        await made.kill("near")
        made.network.heal()
        await made.start("near")
        got = await made.drain("far", "in")
        assert (sorted(got), doubled(got)) == (sorted(numbered(1_021)), {})


async def test_a_window_larger_than_what_is_remembered_is_bounded_and_both_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as made:
        await made.start("far", address_settings=remembering(100))
        await made.start("near", bridge_to("far", window=100))
        await made.send("near", "out", [b"0"])
        assert await made.drain("far", "in") == [b"0"]
        assert not [record for record in caplog.records if getattr(record, "event", "") == "bridge_window"]
        await made.stop("near")
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", [b"1"])
        assert await made.drain("far", "in") == [b"1"]
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "bridge_window"]
    assert "at most 100 messages" in record.message and "window=2000" in record.message and "'in'" in record.message


async def test_a_target_that_remembers_nothing_is_refused_unless_there_is_no_duplicate_detection() -> None:
    async with world() as made:
        await made.start("far", address_settings=remembering(0))
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", numbered(10))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().refused >= 50)
        error = str(bridge.statistics().last_error)
        assert "window=2000" in error and "last 0 duplicate ids" in error and "use_duplicate_detection=False" in error
        assert await made.count("far", "in") == 0
        await made.stop("near")
        await made.start("near", bridge_to("far", use_duplicate_detection=False))
        assert sorted(await made.drain("far", "in")) == sorted(numbered(10))


async def test_a_target_refuses_to_remember_less_than_a_bridge_has_under_way() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", window=50))
        await made.send("near", "out", [b"1"])
        await until(lambda: _count(made, "far", "in", 1))
        async with made.here("far") as client:
            with pytest.raises(UsageError, match=r"window=50: 'in' remembers the last 49 duplicate ids"):
                await client.set_address_settings("in", AddressSettings(duplicate_id_cache_size=49))
            await client.set_address_settings("in", AddressSettings(duplicate_id_cache_size=50))


async def test_a_target_that_comes_back_and_remembers_less_is_asked_anew() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", window=50))
        await made.send("near", "out", numbered(10))
        await until(lambda: _count(made, "far", "in", 10))
        await made.stop("far")
        await made.start("far", address_settings=remembering(5))
        await made.send("near", "out", numbered(10, 10))
        await until(lambda: _count(made, "far", "in", 11))
        # It is judged by what is remembered now.
        async with made.here("far") as client:
            with pytest.raises(UsageError, match=r"window=5: 'in' remembers the last 4 duplicate ids"):
                await client.set_address_settings("in", AddressSettings(duplicate_id_cache_size=4))
        assert sorted(await made.drain("far", "in")) == sorted(numbered(20))


@pytest.mark.parametrize("window", [1, 10])
async def test_no_more_is_under_way_than_the_window_allows(window: int) -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", window=window))
        await made.send("near", "out", [b"first"])
        assert await made.drain("far", "in") == [b"first"]
        made.network.cut("far", "near")
        await made.send("near", "out", numbered(100))
        async with made.here("near") as client:
            await until(lambda: _held(client, window))
            await trio.sleep(5)
            assert (await client.queue("out")).delivering == window
        assert await made.count("far", "in") <= window
        made.network.heal()
        assert await made.drain("far", "in") == numbered(100)


async def _held(client: Client, count: int) -> bool:
    return (await client.queue("out")).delivering == count


async def test_no_more_is_sent_than_is_remembered_before_an_acknowledgement_is_stored() -> None:
    """The source is killed between the pieces of what it has received together."""
    async with world() as made:
        await made.start("far", address_settings=remembering(7))
        await made.start("near", bridge_to("far"))
        await made.send("near", "out", numbered(300))
        for life in range(1, 6):
            await until(lambda life=life: _count(made, "far", "in", 50 * life))
            await made.kill("near")
            await made.start("near")
        got = await made.drain("far", "in")
        assert (sorted(got), doubled(got)) == (sorted(numbered(300)), {})


async def test_what_comes_later_is_sent_before_it_is_known_what_became_of_what_came_first() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", window=25))
        await made.send("near", "out", [b"first"])
        assert await made.drain("far", "in") == [b"first"]
        # No answer comes.
        made.network.cut("far", "near")
        for start in (0, 10, 20):
            await made.send("near", "out", numbered(10, start))
            await trio.sleep(0.2)
        # The third ten would be more than the window allows.
        assert (await made.count("far", "in"), await made.count("near", "out")) == (25, 30)
        made.network.heal()
        assert await made.drain("far", "in") == numbered(30)
        assert await made.count("near", "out") == 0


async def test_what_has_expired_while_the_target_blocked_is_not_received_there() -> None:
    """Several flights wait for room at the target, each for as long as all of them live."""
    async with world() as made:
        blocking = AddressSettings(max_size_messages=10, full_policy="block")
        await made.start("far", address_settings={"in": blocking}, queues=["in"])
        await made.start("near", bridge_to("far", window=256), queues=["out"])
        await made.send("near", "out", [b"first"])
        assert await made.drain("far", "in", quiet=2) == [b"first"]
        for at in range(0, 384, 64):
            await made.send("near", "out", [Message(body, ttl=5) for body in numbered(64, at)])
            await trio.sleep(0.1)
        # What is at the target expires, and a flight arrives that has waited for that with the time that it had before.
        await trio.sleep(14)
        async with made.here("far") as client, client.consumer("in") as consumer:
            assert await consumer.receive_many(100, timeout=5) == []
        assert await made.count("near", "out") == 0


async def test_what_may_be_under_way_follows_what_the_target_says_when_it_is_asked_anew() -> None:
    """The producer at the target is the same one all the time; it vouches for what is under way now."""
    async with world() as made:
        about = {"in": AddressSettings(duplicate_id_cache_size=5, max_size_messages=20, full_policy="fail")}
        await made.start("far", address_settings=about)
        await made.start("near", bridge_to("far", window=50))
        async with made.here("far") as there:
            await made.send("near", "out", numbered(20))
            await until(lambda: _count(made, "far", "in", 20))
            more = AddressSettings(duplicate_id_cache_size=1_000, max_size_messages=20, full_policy="fail")
            await there.set_address_settings("in", more)
            # What is refused now has it asked anew.
            await made.send("near", "out", [b"20"])
            await until(lambda: bridge_of(made.brokers["near"]).statistics().refused > 0)
            assert sorted(await made.drain("far", "in")) == sorted(numbered(21))
            await made.send("near", "out", numbered(10, 21))
            await until(lambda: _count(made, "far", "in", 10))
            with pytest.raises(UsageError, match="window=50: 'in' remembers the last 49 duplicate ids"):
                await there.set_address_settings("in", AddressSettings(duplicate_id_cache_size=49))
