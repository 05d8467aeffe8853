"""Connectors to brokers that announce themselves, and to one of several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from meshq import Acceptor, NetworkConnector, SettingsError
from meshq.client import agent_of
from meshq.discovery import UDPMulticast
from meshq.discovery._endpoint_urls import announced_at
from meshq.discovery._known_nodes_machine import KnownNodes
from tests.bridge.kit import URL, numbered
from tests.network.kit import World, consuming, take, to, until, world

PLACE = "multicast://default"


async def announced(made: World, *names: str, uri: str = f"{PLACE}?insecure=true", **settings: Any) -> None:
    """Start brokers that announce themselves, each with a connector to all the others."""
    for name in names:
        about = {"retry_interval": 0.05, "connection_ttl": 3, "check_period": 1, **settings}
        await made.start(
            name,
            lambda about=about: [NetworkConnector("all", uri, **about)],  # type: ignore[misc]
            acceptors=[Acceptor(URL.format(name), discovery=PLACE)],
        )


@asynccontextmanager
async def five() -> AsyncIterator[World]:
    """Five brokers that have linked themselves up."""
    async with world() as made:
        await announced(made, *"abcde")
        for name in "abcde":
            await made.brokers[name].network("all").wait_for(bridges=4, timeout=30)
        yield made


@pytest.mark.slow
async def test_five_brokers_with_multicast_alone_link_themselves_up_each_with_each() -> None:
    async with five() as made:
        for name in "abcde":
            links = made.brokers[name].network("all").bridges()
            assert sorted(one.target for one in links) == sorted(
                f"tcp://{other}:5000" for other in "abcde" if other != name
            )
            assert sorted(one.name for one in links) == sorted(
                f"all/{other}:5000" for other in "abcde" if other != name
            )
        for name in "ae":
            # One hop is enough from anywhere to anywhere.
            async with consuming(made, name) as (_, there):
                for other in "abcde":
                    if other != name:
                        await made.brokers[other].network("all").wait_for(queue="q", bridges=4, consumers=1, timeout=30)
                        await made.send(other, "q", numbered(3))
                got = await take(there, 12)
                assert sorted(one.path for one in got) == sorted(
                    (other,) for other in "abcde" if other != name for _ in range(3)
                )
            for other in "abcde":
                await made.brokers[other].network("all").wait_for(queue="q", consumers=0, timeout=30)


@pytest.mark.slow
async def test_a_broker_that_crashes_is_gone_after_ten_missed_announcements_and_comes_back() -> None:
    async with five() as made:
        begun = trio.current_time()
        await made.kill("e")
        links = made.brokers["a"].network("all")
        await until(lambda: len(links.bridges()) == 3)
        # Half a second between announcements, and ten of them.
        assert 4.4 <= trio.current_time() - begun <= 5.6
        await made.start("e")
        await links.wait_for(bridges=4, timeout=30)
        await announced(made, "f")
        await links.wait_for(bridges=5, timeout=30)


@pytest.mark.slow
async def test_a_broker_is_added_while_the_network_runs_and_has_messages_and_demand_at_once_until_it_goes() -> None:
    async with world() as made:
        await announced(made, "a", "b")
        links = made.brokers["b"].network("all")
        await links.wait_for(timeout=30)
        # One way: c has an acceptor and no connector, and b, which runs, has a link to c from now on.
        await made.start("c", list, acceptors=[Acceptor(URL.format("c"), discovery=PLACE)])
        await links.wait_for(bridges=2, timeout=30)
        async with consuming(made, "c") as (_, there):
            await links.wait_for(bridges=2, queue="q", consumers=1, timeout=30)
            await made.send("b", "q", numbered(3))
            assert {one.path for one in await take(there, 3)} == {("b",)}
            async with consuming(made, "b", "back") as (_, here):
                await made.send("c", "back", numbered(1))
                await take(here, 0)
        # Both ways: d has a connector that is duplex, and no other broker knows of d.
        await made.start("d", lambda: [to("b", duplex=True)])
        await made.brokers["d"].network("to-b").wait_for(timeout=30)
        async with consuming(made, "d", "p") as (_, there), consuming(made, "b", "r") as (_, here):
            await made.brokers["d"].network("to-b").wait_for(queue="r", consumers=1, timeout=30)
            await made.send("b", "p", numbered(3))
            await take(there, 3)
            await made.send("d", "r", numbered(3))
            await take(here, 3)
        for name in "cd":
            await made.stop(name)
        await until(lambda: [one.target for one in links.bridges()] == ["tcp://a:5000"])
        async with consuming(made, "a") as (_, there):
            await links.wait_for(queue="q", consumers=1, timeout=30)
            await made.send("b", "q", numbered(3))
            await take(there, 3)


async def test_a_link_stays_while_announcements_alone_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        await announced(made, "a", "b")
        links = made.brokers["a"].network("all")
        await links.wait_for(timeout=30)
        lost = SimpleNamespace(changes=(), refused=None)
        monkeypatch.setattr(KnownNodes, "hear", lambda *_: lost)
        await trio.sleep(20)
        assert [one.state for one in links.bridges()] == ["linked"]
        await made.stop("b")
        await until(lambda: links.bridges() == [])


async def test_only_what_may_be_dialed_is_linked() -> None:
    async with world() as made:
        await announced(made, "a", "b", uri=PLACE)
        await trio.sleep(5)
        assert made.brokers["a"].network("all").bridges() == []


async def test_of_several_brokers_one_is_linked_and_the_next_one_when_that_is_gone() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("c")
        places = "(tcp://b:5000,tcp://c:5000)?insecure=true"
        await made.start("a", lambda: [NetworkConnector("one", f"failover:{places}", retry_interval=0.05)])
        link = made.brokers["a"].network("one")
        await link.wait_for(timeout=30)
        assert [one.state for one in link.bridges()] == ["linked"]
        async with consuming(made, "b") as (_, there), consuming(made, "c") as (_, other):
            await link.wait_for(queue="q", consumers=1, timeout=30)
            await made.send("a", "q", numbered(3))
            await take(there, 3)
            await take(other, 0)
        await made.stop("b")
        async with consuming(made, "c") as (_, other):
            await link.wait_for(queue="q", consumers=1, timeout=30)
            await made.send("a", "q", numbered(3))
            await take(other, 3)


async def test_a_list_of_two_makes_two_bridges_also_as_a_discovery_url() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("c")
        uri = "discovery:(static:(tcp://b:5000,tcp://c:5000))?insecure=true"
        await made.start("a", lambda: [NetworkConnector("n", uri, retry_interval=0.05)])
        await made.brokers["a"].network("n").wait_for(bridges=2, timeout=30)
        assert [one.name for one in made.brokers["a"].network("n").bridges()] == ["n/1", "n/2"]


@pytest.mark.parametrize(
    ("uri", "urls"),
    [
        ("static:(tcp://h:1,tcp://g:2?insecure=true)", ("tcp://h:1", "tcp://g:2?insecure=true")),
        ("static://(tcp://h:1,tcp://g:2)?insecure=true", ("tcp://h:1?insecure=true", "tcp://g:2?insecure=true")),
        ("static:(failover:(tcp://a:1,tcp://b:2),tcp://c:3)", ("(tcp://a:1,tcp://b:2)", "tcp://c:3")),
        ("failover:(tcp://a:1,tcp://b:2)", ("(tcp://a:1,tcp://b:2)",)),
        ("discovery:(static:(tcp://a:1,tcp://a:1))", ("tcp://a:1",)),
    ],
)
def test_a_list_is_read(uri: str, urls: tuple[str, ...]) -> None:
    assert agent_of(uri).urls == urls


@pytest.mark.parametrize(
    "uri", ["multicast://default", "discovery://multicast://default", "zeroconf://NEGroup", "udp://231.7.7.7:9876"]
)
def test_a_place_of_announcements_is_read(uri: str) -> None:
    heard_at = agent_of(uri).heard_at
    assert heard_at is not None and uri.endswith(heard_at.name)


@pytest.mark.parametrize(
    "uri", ["tcp://h:1", "fanout:(static:(tcp://a:1))", "static:()", "multicast://a-b", "failover:()", "", 5]
)
def test_what_is_no_agent_is_refused_by_name(uri: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        NetworkConnector("n", uri)
    assert caught.value.setting == "uri"


def test_an_option_of_the_connector_does_not_stand_in_its_uri() -> None:
    with pytest.raises(SettingsError, match="retry_interval= of the connector"):
        NetworkConnector("n", "multicast://default?retry_interval=3")


def test_the_agent_has_the_group_and_the_times_that_it_has_elsewhere() -> None:
    assert UDPMulticast.named("default") == UDPMulticast("239.255.2.3", 6155)
    others = [(one.group, one.port) for one in map(UDPMulticast.named, ("default", "lab", "office"))]
    assert len(set(others)) == 3 and others[1] == (UDPMulticast.named("lab").group, UDPMulticast.named("lab").port)
    assert announced_at("multicast://default").period_s == 0.5
    assert announced_at("multicast://default?broadcast_period=1").period_s == 1
    assert announced_at("udp://231.7.7.7:9876").period_s == 2
    for uri, timeout in {"multicast://default": 5, "udp://231.7.7.7:9876": 10}.items():
        heard_at = agent_of(uri).heard_at
        assert heard_at is not None and heard_at.refresh_timeout == timeout
    assert agent_of("multicast://default?refresh_timeout=3").heard_at.refresh_timeout == 3  # type: ignore[union-attr]
