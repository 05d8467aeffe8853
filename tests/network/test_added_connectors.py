"""Connectors are added to a network that runs, and removed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from meshq import Broker, CallTimeoutError, NetworkConnector, NotActiveError, NotFoundError, SettingsError
from tests.bridge.kit import URL, numbered
from tests.network.kit import consuming, known, start, take, to, until, world


async def test_a_broker_that_runs_is_given_a_connector_either_way_and_loses_it_again() -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "", "a": "b"}, network_ttl=2)
        async with consuming(made, "c") as (_, there), consuming(made, "a", "back") as (_, here):
            # One way, from a broker in the middle.
            await made.brokers["b"].add_network(to("c", network_ttl=2, duplex=True))
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(5))
            assert {one.path for one in await take(there, 5)} == {("a", "b")}
            # And back, by one more.
            await made.brokers["b"].add_network(to("a", network_ttl=2))
            await known(made, "ba", "back", 1)
            await made.send("c", "back", numbered(5))
            assert {one.path for one in await take(here, 5)} == {("c", "b")}
            async with made.here("b") as client:
                assert {one.name for one in await client.bridges()} >= {"to-a", "to-c"}
            await made.brokers["b"].remove_network("to-c")
            await known(made, "ab", "q", 0)
            await made.send("a", "q", numbered(5))
            await take(there, 0)
            assert await made.count("a", "q") == 5
            with pytest.raises(NotFoundError, match="'to-c'; known: 'to-a'"):
                made.brokers["b"].network("to-c")
            async with made.here("b") as client:
                assert "to-c" not in {one.name for one in await client.bridges()}
            # One of the settings goes as well, and one of its name may come after it.
            await made.brokers["a"].remove_network("to-b")
            await made.brokers["b"].add_network(to("c", network_ttl=2))
            await made.brokers["a"].add_network(to("b", network_ttl=2))
            await known(made, "ab", "q", 1)
            await take(there, 5)


async def test_what_can_not_be_added_or_removed_is_named() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        broker = made.brokers["a"]
        with pytest.raises(SettingsError, match="name='to-b' is not allowed"):
            await broker.add_network(to("b"))
        with pytest.raises(SettingsError, match="uri"):
            await broker.add_network(NetworkConnector("far", "static:(tcp://far.example:1)"))
        with pytest.raises(SettingsError, match="which are user= and password= of the connector"):
            NetworkConnector("far", "static:(tcp://user:canary@b:5000)")
        wrong: Any = "to-b"
        with pytest.raises(SettingsError, match=r"connector='to-b' is not allowed; allowed: a NetworkConnector"):
            await broker.add_network(wrong)
        wrong = broker.network("to-b")
        with pytest.raises(SettingsError, match="allowed: the name of a network connector"):
            await broker.remove_network(wrong)
        with pytest.raises(NotFoundError, match="no network connector 'far'; known: 'to-b'"):
            await broker.remove_network("far")
        await made.stop("a")
        for call in (lambda: broker.add_network(to("c")), lambda: broker.remove_network("to-b")):
            with pytest.raises(NotActiveError):
                await call()
        assert broker.network("to-b").name == "to-b"


async def test_a_link_that_can_not_be_made_says_why_in_the_log_and_to_who_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as made:
        await start(made, {"a": ""})
        broker = made.brokers["a"]
        await broker.add_network(to("b"))
        link = broker.network("to-b")
        with pytest.raises(CallTimeoutError, match=r"0 of 1 links after 3 s; to-b is connecting: .*5000"):
            await link.wait_for(timeout=3)
        assert [one.levelname for one in caplog.records if "the link to-b is down: " in one.getMessage()] == ["WARNING"]
        await broker.remove_network("to-b")
        with pytest.raises(NotActiveError, match="the network connector 'to-b' was removed, or its broker"):
            await link.wait_for(timeout=3)


async def test_a_connector_that_is_added_stops_with_its_broker() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": ""})
        await made.brokers["a"].add_network(NetworkConnector("late", f"static:({URL.format('b')})"))
        await made.brokers["a"].network("late").wait_for(timeout=30)
        await made.stop("a")
        await until(lambda: made.brokers["a"].state == "stopped")


async def test_a_connector_whose_adding_is_cancelled_is_not_there_and_may_be_added_again() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": ""})
        broker = made.brokers["a"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await broker.add_network(to("b"))
        assert scope.cancelled_caught
        with pytest.raises(NotFoundError):
            broker.network("to-b")
        await broker.add_network(to("b"))
        await broker.network("to-b").wait_for(timeout=30)


async def test_a_connector_that_is_removed_while_its_adding_is_cancelled_is_not_there() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": ""})
        broker = made.brokers["a"]

        async def add() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await broker.add_network(to("b"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
                with suppress(NotFoundError):
                    await broker.remove_network("to-b")
                    break
        with pytest.raises(NotFoundError):
            broker.network("to-b")


async def test_a_connector_may_be_added_again_when_its_removal_was_cancelled() -> None:
    async with world() as made:
        connector = to("b")
        await made.start("b")
        await made.start("a", lambda: [connector])
        broker = made.brokers["a"]
        await broker.network("to-b").wait_for(timeout=30)
        with trio.CancelScope() as scope:
            scope.cancel()
            await broker.remove_network("to-b")
        await broker.add_network(connector)
        await trio.sleep(10)
        await broker.network("to-b").wait_for(timeout=5)


async def test_a_connector_that_one_broker_has_is_refused_by_another_and_goes_on() -> None:
    connector = to("b")
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [connector])
        await made.start("z")
        await connector.wait_for(timeout=30)
        with pytest.raises(SettingsError, match="served by 'a'"):
            await made.brokers["z"].add_network(connector)
        with pytest.raises(NotFoundError):
            made.brokers["z"].network("to-b")
        assert [one.state for one in connector.bridges()] == ["linked"]
        await made.brokers["a"].remove_network("to-b")
        await made.brokers["z"].add_network(connector)
        await connector.wait_for(timeout=30)


async def test_the_connectors_of_a_broker_in_a_thread_say_what_is_wrong() -> None:
    hosted = Broker(
        "b", data_dir=None, services=[NetworkConnector("out", "static:(tcp://127.0.0.1:1)")]
    ).run_in_thread()
    link = hosted.network("out")
    wrong: Any = "out"
    async with hosted:
        with pytest.raises(SettingsError):
            await hosted.add_network(wrong)
        with pytest.raises(SettingsError):
            await hosted.remove_network(link)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await link.wait_for(bridges=-1)
        with pytest.raises(CallTimeoutError):
            await link.wait_for(timeout=0.01)
        for call in (hosted.network, hosted.remove_network):
            with pytest.raises(NotFoundError):
                await call("none")  # type: ignore[misc]
    for plain in (link.bridges, link.subscriptions):
        with pytest.raises(NotActiveError):
            plain()
    for waiting in (lambda: hosted.remove_network("out"), lambda: hosted.add_network(wrong), link.wait_for):
        with pytest.raises(NotActiveError):
            await waiting()
