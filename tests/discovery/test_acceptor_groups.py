"""Acceptors that say by themselves where they are announced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq import (
    Acceptor,
    Broker,
    ConfigError,
    ConnectionBrokenError,
    SettingsError,
    Zeroconf,
    abc,
    connect,
    load_broker,
)
from meshq.discovery import UDPMulticast
from meshq.testing import MemoryDatagrams
from tests.discovery.test_endpoints import LOOPBACK, in_memory
from tests.discovery.test_groups import heard

HERE = "tcp://127.0.0.1:0"


def node(world: MemoryDatagrams, discovery: Mapping[str, str | None], **settings: Any) -> Broker:
    """A broker with acceptors, and where each of them is announced."""
    acceptors = [Acceptor(url, discovery=where) for url, where in discovery.items()]
    return Broker("a", **{"data_dir": None, "acceptors": acceptors, "env": in_memory(world), **settings})


async def places(world: MemoryDatagrams, endpoint: abc.BroadcastEndpoint, within_s: float = 5.0) -> list[list[str]]:
    """What a host of the network hears at an endpoint."""
    channel = await endpoint.open(in_memory(world, "b"))
    found = [[pair.primary for pair in one.connectors] for _, one in await heard(channel, within_s)]
    channel.close()
    return found


# -- which acceptor is announced where


async def test_each_acceptor_is_announced_in_its_own_group_and_one_without_is_in_none() -> None:
    world = MemoryDatagrams()
    groups: dict[str, str | None] = {
        "tcp://127.0.0.1:61716": "multicast://g1",
        "tcp://127.0.0.1:61717": "multicast://g2",
        "tcp://127.0.0.1:61718": None,
    }
    async with node(world, groups):
        for group, port in (("g1", 61716), ("g2", 61717)):
            found = await places(world, UDPMulticast.named(group))
            assert found and all(one == [f"tcp://127.0.0.1:{port}"] for one in found)
        assert await places(world, UDPMulticast.named("default")) == []


async def test_a_broker_is_discovered_only_if_one_of_its_acceptors_says_so() -> None:
    world = MemoryDatagrams()
    async with node(world, {HERE: None}):
        assert await places(world, UDPMulticast.named("default")) == []
    async with node(world, {HERE: "multicast://default"}) as broker:
        (url,) = broker.urls
        assert not url.endswith(":0")
        assert (await places(world, UDPMulticast.named("default")))[0] == [url]


async def test_acceptors_in_one_group_are_announced_together() -> None:
    world = MemoryDatagrams()
    where = "multicast://default?broadcast_period=0.5"
    async with node(world, {HERE: where, "tcp://[::1]:0": where}) as broker:
        found = await places(world, UDPMulticast.named("default"), 1.9)
        # Announced each half second; the listener may come after the first time.
        assert found in ([broker.urls] * 3, [broker.urls] * 4)
        assert [service.name for service in broker._settings.services] == [where]


@pytest.mark.parametrize("period", ["broadcast_period=0.25", "broadcastPeriod=250"])
async def test_the_url_says_how_often_and_by_which_interface(period: str) -> None:
    world = MemoryDatagrams()
    url = f"udp://231.7.7.7:9876?{period}&localBindAddress=127.0.0.1&localBindPort=-1"
    async with node(world, {HERE: url}) as broker:
        endpoint = UDPMulticast("231.7.7.7", 9876, bind_address=LOOPBACK)
        channel = await endpoint.open(in_memory(world))
        assert len(await heard(channel, 0.9)) in (3, 4)
        assert await places(world, UDPMulticast("231.7.7.7", 9876)) == []
        assert broker.state == "active"


# -- DNS-SD


async def test_a_broker_that_is_announced_at_a_multicast_name_is_found_by_dns_sd_of_that_name_too() -> None:
    world = MemoryDatagrams()
    async with node(world, {HERE: "multicast://NEGroup"}) as broker:
        for name, found in (("NEGroup", True), ("OtherGroup", False)):
            assert bool(await places(world, Zeroconf(name))) is found
        assert (await places(world, Zeroconf("NEGroup")))[0] == broker.urls
    async with node(world, {HERE: "zeroconf://NEGroup"}) as broker:
        assert (await places(world, Zeroconf("NEGroup")))[0] == broker.urls
        assert await places(world, UDPMulticast.named("NEGroup")) == []


@pytest.mark.real
async def test_a_client_finds_a_broker_by_each_agent_and_none_in_another_group() -> None:
    group = in_memory().entropy.token(8).hex()
    options = f"bind_address={LOOPBACK}&initial_wait_for=1"
    where = Acceptor(HERE, discovery=f"multicast://{group}?bind_address={LOOPBACK}&broadcast_period=0.2")
    with trio.fail_after(60):
        async with Broker("a", data_dir=None, acceptors=[where]) as broker:
            agents = [f"multicast://{group}?{options}", f"zeroconf://{group}?{options}", f"static:({broker.urls[0]})"]
            for url in (*agents, *(f"discovery:({agent})" for agent in agents)):
                async with connect(url) as client:
                    assert client.statistics().node_name == "a"
            with pytest.raises(ConnectionBrokenError, match="no broker has announced itself"):
                await connect(f"zeroconf://{group}x?bind_address={LOOPBACK}&initial_wait_timeout=0.5").__aenter__()


# -- what is wrong


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("multicast://a-b", "group as a name of 1 to 100 letters and digits"),
        ("zeroconf://a.b", "group as a name of 1 to 62 letters and digits"),
        ("static://(tcp://a:1)", "multicast://NAME, udp://GROUP:PORT or zeroconf://NAME"),
        ("udp://231.7.7.7", "udp://GROUP:PORT"),
        ("multicast://x?period=1", "each of these options once: bind_address, "),
        ("multicast://x?broadcastPeriod=1&broadcast_period=1", "each of these options once: "),
        ("multicast://x?bind_address", "a query of key=value pairs"),
        ("multicast://x?broadcast_period=0", "broadcast_period as a number from 0.001 to 86400.0"),
        ("multicast://x?broadcast_period=nan", "broadcast_period as a number from 0.001 to 86400.0"),
        ("multicast://x?broadcast_period=soon", "a number as broadcast_period"),
        ("multicast://x?bind_port=5", "bind_port as None, or a port together with bind_address"),
        ("multicast://x?bind_port=5.5", "a port as bind_port, or -1 for any"),
        ("zeroconf://x?bind_port=5", "no port with zeroconf:, which has its own"),
        ("multicast://x?bind_address=localhost", "bind_address as the IPv4 address of an interface"),
    ],
)
def test_a_url_that_names_no_place_is_refused_when_the_broker_is_built(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(SettingsError, match="discovery=") as caught:
        node(MemoryDatagrams(), {HERE: url})
    assert said in str(caught.value)
    file = tmp_path / "broker.toml"
    file.write_text(f'name = "a"\ndata_dir = false\n[[acceptors]]\nurl = "{HERE}"\ndiscovery = "{url}"\n')
    with pytest.raises(ConfigError, match=re.escape(said)) as told:
        load_broker(file)
    ((_, line, key, _),) = told.value.problems
    assert (line, key) == (5, "acceptors[0].discovery")


@pytest.mark.parametrize("wrong", ["default", 5, b"multicast://x", UDPMulticast.named("x")])
def test_discovery_of_an_acceptor_is_a_url(wrong: Any) -> None:
    with pytest.raises(SettingsError, match="discovery="):
        Acceptor(HERE, discovery=wrong)


def test_an_acceptor_that_nobody_can_dial_is_not_announced() -> None:
    acceptor = Acceptor("tcp://0.0.0.0:0", insecure=True, discovery="multicast://default")
    with pytest.raises(SettingsError, match="a host that other machines can dial, as discovery announces the acceptor"):
        Broker("a", data_dir=None, acceptors=[acceptor])


def test_a_file_says_it_for_each_acceptor(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        f'name = "a"\ndata_dir = false\n[[acceptors]]\nurl = "{HERE}"\ndiscovery = "multicast://default"\n'
        f'[[acceptors]]\nurl = "{HERE}"\n'
    )
    broker = load_broker(file)
    assert [acceptor.discovery for acceptor in broker._settings.acceptors] == ["multicast://default", None]
    assert broker.service("multicast://default").kind == "acceptor_group"


def test_settings_that_are_changed_later_have_each_group_once() -> None:
    settings = node(MemoryDatagrams(), {HERE: "multicast://default"})._settings
    assert attrs.evolve(settings, data_dir="/data").services == settings.services


async def test_a_broker_that_can_not_announce_itself_goes_on_serving() -> None:
    world = MemoryDatagrams()
    taken = await world.host("a").bind("", 5353)
    async with node(world, {HERE: "multicast://default"}) as broker:
        assert (await places(world, UDPMulticast.named("default")))[0] == broker.urls
        assert await places(world, Zeroconf("default"), 1.0) == []
        taken.close()
        assert (await places(world, Zeroconf("default")))[0] == broker.urls
