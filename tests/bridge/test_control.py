"""A bridge is watched, paused and resumed: by its owner, by clients and by messages."""

from __future__ import annotations

import pytest
import trio

from meshq import AddressSettings, Broker, NotFoundError, SettingsError
from tests.bridge.kit import bridge_of, bridge_to, numbered, until, world


async def test_a_paused_bridge_carries_nothing_and_leaves_the_queue_to_others() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        bridge = bridge_of(made.brokers["near"])
        await made.send("near", "out", [b"1"])
        await until(lambda: bridge.statistics().carried == 1)
        assert bridge.statistics().state == "carrying"
        bridge.pause()
        bridge.pause()
        await until(lambda: bridge.statistics().state == "paused")
        await made.send("near", "out", numbered(10))
        await trio.sleep(20)
        assert (await made.count("far", "in"), bridge.statistics().carried) == (1, 1)
        async with made.here("near") as client:
            assert (await client.queue("out")).consumers == 0
        assert len(await made.drain("near", "out")) == 10
        await made.send("near", "out", [b"2"])
        bridge.resume()
        bridge.resume()
        assert await made.drain("far", "in") == [b"1", b"2"]


async def test_a_pause_finishes_what_is_being_sent_and_nothing_more() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far", use_duplicate_detection=False, window=10))
        made.network.delay("near", "far", 1, 1)
        await made.send("near", "out", numbered(100))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().carried == 10)
        await trio.sleep(0.5)
        bridge.pause()
        assert (bridge.statistics().state, bridge.statistics().carried) == ("paused", 10)
        await until(lambda: bridge.statistics().carried == 20)
        await trio.sleep(20)
        assert (bridge.statistics().state, bridge.statistics().carried) == ("paused", 20)
        bridge.resume()
        assert await made.drain("far", "in") == numbered(100)


async def test_a_bridge_that_its_target_blocks_says_paused_and_goes_on_when_it_is_resumed() -> None:
    async with world() as made:
        full = AddressSettings(max_size_messages=1, full_policy="block")
        await made.start("far", address_settings={"in": full})
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far", call_timeout=1_000, call_failover_timeout=1_000))
        await made.send("near", "out", numbered(10))
        bridge = bridge_of(made.brokers["near"])
        await trio.sleep(5)
        assert bridge.statistics().state == "carrying"
        bridge.pause()
        assert bridge.statistics().state == "paused"
        await trio.sleep(5)
        assert (bridge.statistics().state, bridge.statistics().carried) == ("paused", 0)
        assert "paused" in repr(bridge)
        bridge.resume()
        assert bridge.statistics().state == "carrying"
        assert await made.drain("far", "in") == [b"first", *numbered(10)]


async def test_a_bridge_whose_target_does_not_answer_is_connecting_and_says_why() -> None:
    async with world() as made:
        await made.start("near", bridge_to("far", call_timeout=0.5))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().last_error is not None)
        found = bridge.statistics()
        assert (found.state, found.carried) == ("connecting", 0)
        assert found.last_error is not None and "far" in found.last_error
        await made.start("far")
        await made.send("near", "out", [b"1"])
        await until(lambda: bridge.statistics().carried == 1)
        # What went wrong last is still told.
        assert (bridge.statistics().state, bridge.statistics().last_error) == ("carrying", found.last_error)


async def test_a_bridge_whose_target_goes_away_is_connecting_and_says_why() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", bridge_to("far"))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().state == "carrying")
        assert bridge.statistics().last_error is None
        await made.stop("far")
        await until(lambda: bridge.statistics().last_error is not None)
        assert bridge.statistics().state == "connecting"
        await made.start("far")
        await until(lambda: bridge.statistics().state == "carrying")


async def test_a_bridge_is_paused_while_it_connects_and_while_it_waits() -> None:
    async with world() as made:
        await made.start("near", bridge_to("far", retry_interval=1_000))
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().state == "connecting")
        bridge.pause()
        assert bridge.statistics().state == "paused"
        await trio.sleep(1)
        await made.start("far", address_settings={"in": AddressSettings(max_size_messages=1, full_policy="fail")})
        await made.send("far", "in", [b"first"])
        await made.send("near", "out", [b"1"])
        await trio.sleep(10)
        assert bridge.statistics().refused == 0
        bridge.resume()
        await until(lambda: bridge.statistics().state == "waiting")
        bridge.pause()
        await until(lambda: bridge.statistics().state == "paused")
        assert len(await made.drain("far", "in")) == 1
        # It need not wait for the interval.
        bridge.resume()
        with trio.fail_after(900):
            assert await made.drain("far", "in") == [b"1"]


async def test_to_resume_a_bridge_that_is_not_paused_changes_nothing() -> None:
    async with world() as made:
        await made.start("far", address_settings={"in": AddressSettings(max_size_messages=1, full_policy="fail")})
        await made.send("far", "in", [b"first"])
        await made.start("near", bridge_to("far", retry_interval=1_000))
        await made.send("near", "out", [b"1"])
        bridge = bridge_of(made.brokers["near"])
        await until(lambda: bridge.statistics().state == "waiting")
        bridge.resume()
        await trio.sleep(100)
        assert (bridge.statistics().state, bridge.statistics().refused) == ("waiting", 1)


async def test_a_bridge_can_be_paused_before_its_broker_starts_and_says_when_it_has_stopped() -> None:
    async with world() as made:
        await made.start("far")
        (bridge,) = bridge_to("far")()
        assert bridge.statistics().state == "new"
        bridge.pause()
        assert bridge.statistics().state == "new"
        await made.start("near", lambda: [bridge])
        await made.send("near", "out", [b"1"])
        await trio.sleep(5)
        assert (bridge.statistics().state, await made.count("near", "out")) == ("paused", 1)
        bridge.resume()
        assert await made.drain("far", "in") == [b"1"]
        await made.stop("near")
        assert bridge.statistics().state == "stopped"
        bridge.pause()
        assert bridge.statistics().state == "stopped"


async def test_a_client_elsewhere_watches_pauses_and_resumes_a_bridge() -> None:
    async with world() as made:
        await made.start("far")
        await made.start("near", lambda: [*bridge_to("far")(), *bridge_to("far", "a", queue="other")()])
        await made.send("near", "out", numbered(10))
        await until(lambda: bridge_of(made.brokers["near"]).statistics().carried == 10)
        async with made.dial("near") as client:
            one, other = await client.bridges()
            assert (one.name, one.queue, one.carried) == ("a", "other", 0)
            assert other == bridge_of(made.brokers["near"]).statistics()
            assert other.target == "tcp://far:5000"
            await client.pause_bridge("b")
            await until(lambda: bridge_of(made.brokers["near"]).statistics().state == "paused")
            assert [found.state for found in await client.bridges()] == ["carrying", "paused"]
            await made.send("near", "out", [b"more"])
            await trio.sleep(5)
            assert await made.count("near", "out") == 1
            await client.resume_bridge("b")
            assert len(await made.drain("far", "in")) == 11
            with pytest.raises(NotFoundError, match="there is no bridge 'c'"):
                await client.pause_bridge("c")


async def test_more_bridges_than_a_frame_names_are_all_listed() -> None:
    names = [f"bridge {number:03}" for number in range(60)]
    async with world() as made:
        await made.start("near", lambda: [one for name in names for one in bridge_to("far", name)()])
        async with made.dial("near") as client:
            assert [found.name for found in await client.bridges()] == names


def test_two_bridges_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="different names for services of the kind 'bridge'"):
        Broker("near", data_dir=None, services=[*bridge_to("far")(), *bridge_to("near")()])
