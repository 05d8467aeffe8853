"""Broadcast groups and discovery groups of brokers: who is announced when, who is known how long, and what fails."""

from __future__ import annotations

import errno
import logging
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq import Broker
from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env, Service, WallClock
from meshq.discovery import (
    Announcement,
    BroadcastGroup,
    ConnectorPair,
    DiscoveryGroup,
    SharedDirectory,
    StaticUnicast,
    UDPMulticast,
)
from meshq.discovery._datagram_format import decode_announcement, encode_announcement
from meshq.env import real_env
from meshq.errors import BrokenError, CallTimeoutError, NotActiveError, SettingsError
from meshq.settings import Secret
from meshq.testing import DiskCall, MemoryBroadcast, SimDisk
from tests.discovery.kit import SECRET, an_announcement, at
from tests.discovery.test_endpoints import LOOPBACK, free_ports, in_memory


def node(name: str, *services: Service, **settings: Any) -> Broker:
    """Return a broker in memory, with connectors at which no broker listens."""
    connectors = {"me": f"tcp://{name}:61616?insecure=true", "other": f"tls://{name}:61617"}
    return Broker(
        name, **{"data_dir": None, "connectors": connectors, "services": services, "env": in_memory(), **settings}
    )


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") == event]


async def heard(channel: BroadcastChannel, within_s: float) -> list[tuple[float, Announcement]]:
    """Return the announcements that come in this time, each with the seconds until it came."""
    found = []
    begun = trio.current_time()
    with trio.move_on_after(within_s):
        while True:
            announcement = decode_announcement(await channel.receive(), None)
            assert isinstance(announcement, Announcement)
            found.append((trio.current_time() - begun, announcement))
    return found


class Unusable(BroadcastEndpoint):
    """An endpoint that can't be used until it is mended."""

    def __init__(self) -> None:
        self.inner = MemoryBroadcast()
        self.broken: list[str] = []

    def check(self, what: str) -> None:
        if what in self.broken:
            raise BrokenError(f"{what} is broken") from OSError("no such device")

    async def open(self, env: Env) -> BroadcastChannel:
        await trio.lowlevel.checkpoint()
        self.check("open")
        return UnusableChannel(self, await self.inner.open(env))


class UnusableChannel(BroadcastChannel):
    def __init__(self, endpoint: Unusable, inner: BroadcastChannel) -> None:
        self.endpoint = endpoint
        self.inner = inner

    async def broadcast(self, datagram: bytes) -> None:
        self.endpoint.check("broadcast")
        await self.inner.broadcast(datagram)

    async def receive(self) -> bytes:
        self.endpoint.check("receive")
        return await self.inner.receive()

    def close(self) -> None:
        self.inner.close()


# -- announcing


@pytest.mark.parametrize(("settings", "times"), [({}, [0.0, 2.0, 4.0]), ({"broadcast_period": 0.5}, [0.0, 0.5, 1.0])])
async def test_a_broker_is_announced_at_once_and_then_each_period(
    settings: dict[str, float], times: list[float]
) -> None:
    lan = MemoryBroadcast()
    channel = await lan.open(real_env())
    async with node("a", BroadcastGroup("lan", lan, connectors=["me"], **settings)):
        found = await heard(channel, times[-1] + 0.1)
    assert [round(when, 6) for when, _ in found] == times
    assert [announcement.sequence for _, announcement in found] == [1, 2, 3]
    assert await heard(channel, 60.0) == []


class Before1970(WallClock):
    """The clock of a machine that has not been told the time."""

    def now_ms(self) -> int:
        return -86_400_000


async def test_a_broker_is_announced_when_its_clock_is_before_1970() -> None:
    lan = MemoryBroadcast()
    channel = await lan.open(real_env())
    env = attrs.evolve(in_memory(), wall=Before1970())
    async with node("a", BroadcastGroup("lan", lan, connectors=["me"]), env=env):
        found = await heard(channel, 0.1)
    assert [announcement.began_ms for _, announcement in found] == [0]


async def test_an_announcement_has_the_id_of_the_node_and_all_its_connectors_without_options() -> None:
    lan = MemoryBroadcast()
    channel = await lan.open(real_env())
    async with node("a", BroadcastGroup("lan", lan, connectors=["other", "me"])) as broker:
        ((_, announcement),) = await heard(channel, 1.0)
        assert announcement.node_id == bytes(broker.node_id)
    assert (announcement.name, announcement.period_ms) == ("a", 2_000)
    assert announcement.connectors == (ConnectorPair("tls://a:61617"), ConnectorPair("tcp://a:61616"))


async def test_all_groups_of_a_broker_announce_it_and_a_broker_without_a_group_is_not_announced() -> None:
    endpoints = [MemoryBroadcast(), MemoryBroadcast()]
    channels = [await endpoint.open(real_env()) for endpoint in endpoints]
    async with node("silent"):
        pass
    async with node("a", *[BroadcastGroup(f"lan {one}", endpoints[one], connectors=["me"]) for one in (0, 1)]):
        for channel in channels:
            assert [announcement.name for _, announcement in await heard(channel, 1.0)] == ["a"]


@pytest.mark.parametrize(
    "make", [lambda lan: BroadcastGroup("lan", lan, connectors=["me"]), lambda lan: DiscoveryGroup("lan", lan)]
)
def test_two_groups_of_one_kind_have_different_names(make: Any) -> None:
    lan = MemoryBroadcast()
    with pytest.raises(SettingsError, match="different names for services of the kind"):
        node("a", make(lan), make(lan))
    node("a", BroadcastGroup("lan", lan, connectors=["me"]), DiscoveryGroup("lan", lan))


async def test_two_groups_that_announce_a_broker_at_one_place_are_refused_unless_their_secrets_differ() -> None:
    lan = MemoryBroadcast()
    groups = [
        BroadcastGroup(str(number), lan, connectors=[name], secret=secret)
        for number, (name, secret) in enumerate([("me", None), ("other", None), ("me", "old"), ("other", "new")])
    ]
    with pytest.raises(SettingsError, match="one group for all connectors that are announced at a place"):
        node("a", *groups[:2])
    with pytest.raises(SettingsError, match="one group for all connectors that are announced at a place"):
        multicast = [BroadcastGroup(one, UDPMulticast("231.7.7.7", 9876), connectors=["me"]) for one in "ab"]
        node("a", *multicast)
    # While a secret is changed, those with the old one and those with the new one hear it.
    channel = await lan.open(real_env())
    async with node("a", *groups[2:], connectors={"me": "tcp://a:1", "other": "tcp://a:2"}):
        assert len(await heard(channel, 1.0)) == 2


@pytest.mark.parametrize(
    ("connectors", "allowed"),
    [
        ({}, "connectors of the broker: none"),
        ({"you": "tcp://b:1"}, "connectors of the broker: you"),
        ({"me": "inproc://a"}, "which other machines can dial"),
        ({"me": "tcp://0.0.0.0:61616"}, "which other machines can dial"),
        ({"me": "tcp://a:0"}, "which other machines can dial"),
        ({"me": "tcp://" + "h" * 8_200 + ":1"}, "at most 8192 bytes"),
    ],
)
async def test_a_connector_that_is_unknown_or_can_not_be_announced_is_refused(
    connectors: dict[str, str], allowed: str
) -> None:
    group = BroadcastGroup("lan", MemoryBroadcast(), connectors=["me"])
    with pytest.raises(SettingsError, match=allowed):
        async with node("a", group, connectors=connectors):
            pass


LAN = MemoryBroadcast()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"endpoint": "udp://231.7.7.7:9876"},
        {"endpoint": [LAN, LAN]},
        {"connectors": []},
        {"connectors": "me"},
        {"connectors": ["me", "me"]},
        {"connectors": [5]},
        {"broadcast_period": 0},
        {"broadcast_period": math.inf},
        {"secret": ""},
        {"secret": b"bytes"},
    ],
)
def test_a_broadcast_group_refuses_settings_that_are_not_allowed(wrong: dict[str, Any]) -> None:
    settings = {"name": "lan", "endpoint": LAN, "connectors": ["me"], **wrong}
    with pytest.raises(SettingsError, match=next(iter(wrong)) + "="):
        BroadcastGroup(settings.pop("name"), settings.pop("endpoint"), **settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"endpoint": None},
        {"refresh_timeout": 0},
        {"refresh_timeout": math.inf},
        {"initial_wait_timeout": -1},
        {"secret": 5},
    ],
)
def test_a_discovery_group_refuses_settings_that_are_not_allowed(wrong: dict[str, Any]) -> None:
    settings = {"name": "lan", "endpoint": LAN, **wrong}
    with pytest.raises(SettingsError, match=next(iter(wrong)) + "="):
        DiscoveryGroup(settings.pop("name"), settings.pop("endpoint"), **settings)


def test_a_secret_is_never_shown() -> None:
    for group in (
        BroadcastGroup("lan", LAN, connectors=["me"], secret="canary"),
        DiscoveryGroup("lan", LAN, secret=Secret("canary")),
    ):
        assert "canary" not in f"{group!r} {group.settings!r}"
    with pytest.raises(SettingsError) as caught:
        DiscoveryGroup("lan", LAN, secret=b"canary")  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)


async def test_a_node_that_can_not_announce_itself_goes_on_serving_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lan = Unusable()
    channel = await lan.inner.open(real_env())
    for what in ("open", "broadcast"):
        caplog.clear()
        lan.broken = [what]
        async with node("a", BroadcastGroup("lan", lan, connectors=["me"])) as broker, broker.client() as client:
            assert await heard(channel, 5.0) == []
            assert said(caplog, "cannot_announce") == [f"the broadcast group lan can't announce a: {what} is broken"]
            await client.send("orders", b"served")
            lan.broken = []
            assert len(await heard(channel, 4.0)) == 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("call", ["create", "write", "replace", "names", "make_directory"])
async def test_a_shared_directory_that_is_full_read_only_or_gone_is_said_and_used_as_soon_as_it_can_be(
    caplog: pytest.LogCaptureFixture, error: int, call: DiskCall
) -> None:
    disk = SimDisk(random.Random(1))
    env = attrs.evolve(in_memory(), disk=disk)
    lan = SharedDirectory("/shared", "lan")
    channel = await lan.open(env)
    disk.faults.inject(call, error, path="/shared/lan", times=math.inf)
    async with node("a", BroadcastGroup("lan", lan, connectors=["me"]), env=env) as broker, broker.client() as client:
        await trio.sleep(5)
        (said_once,) = said(caplog, "cannot_announce")
        assert "the broadcast group lan can't announce a: the directory /shared/lan can't be used:" in said_once
        assert os.strerror(error) in said_once
        await client.send("orders", b"served")
        disk.faults.clear()
        assert len(await heard(channel, 5.0)) in (2, 3)
        # Nothing is left of the attempts that failed.
        assert len(disk.names("/shared/lan")) == 1


# -- listening


async def test_brokers_find_each_other_and_not_themselves() -> None:
    lan = MemoryBroadcast()
    groups = {name: DiscoveryGroup("lan", lan) for name in "abc"}
    async with (
        node("a", BroadcastGroup("lan", lan, connectors=["me"]), groups["a"]),
        node("b", BroadcastGroup("lan", lan, connectors=["me"]), groups["b"]),
        node("c", groups["c"]),
    ):
        await groups["a"].wait_for(1)
        await groups["b"].wait_for(1)
        await groups["c"].wait_for(2)
        await trio.sleep(30.0)
        found = {name: [one.name for one in group.nodes()] for name, group in groups.items()}
    assert {name: sorted(names) for name, names in found.items()} == {"a": ["b"], "b": ["a"], "c": ["a", "b"]}


@pytest.mark.parametrize(("settings", "silence"), [({}, 10.0), ({"refresh_timeout": 0.5}, 0.5)])
async def test_a_node_is_known_until_it_was_silent_for_the_refresh_timeout(
    settings: dict[str, float], silence: float
) -> None:
    lan = MemoryBroadcast()
    group = DiscoveryGroup("lan", lan, **settings)
    async with node("a", group):
        await trio.testing.wait_all_tasks_blocked()
        channel = await lan.open(real_env())
        await channel.broadcast(encode_announcement(an_announcement(name="b", period_ms=100), None))
        await group.wait_for(1, timeout=0.0)
        (known,) = group.nodes()
        begun = known.heard_at
        await trio.sleep_until(begun + silence - 0.000_001)
        assert len(group.nodes()) == 1
        await trio.sleep_until(begun + silence + 0.000_001)
        assert group.nodes() == ()


async def test_a_new_announcement_replaces_the_entry_of_its_node() -> None:
    lan = MemoryBroadcast()
    group = DiscoveryGroup("lan", lan)
    async with node("a", group):
        await trio.testing.wait_all_tasks_blocked()
        channel = await lan.open(real_env())
        for number, url in enumerate(["tcp://b:1", "tcp://b:2"], 1):
            announcement = an_announcement(name="b", sequence=number, connectors=at(url))
            await channel.broadcast(encode_announcement(announcement, None))
            await trio.testing.wait_all_tasks_blocked()
            assert [one.connectors for one in group.nodes()] == [at(url)]


async def test_groups_with_different_secrets_do_not_believe_each_other(caplog: pytest.LogCaptureFixture) -> None:
    lan = MemoryBroadcast()
    groups = {secret: DiscoveryGroup(f"with {secret}", lan, secret=secret) for secret in ("one", "two", None)}
    async with (
        node("a", *groups.values()),
        node("one", BroadcastGroup("lan", lan, connectors=["me"], secret="one")),
        node("open", BroadcastGroup("lan", lan, connectors=["me"])),
    ):
        await trio.sleep(3.0)
        assert [[one.name for one in group.nodes()] for group in (groups["one"], groups["two"])] == [["one"], []]
        assert sorted(one.name for one in groups[None].nodes()) == ["one", "open"]
        statistics = groups["two"].statistics()
    assert (statistics.nodes, statistics.datagrams) == (0, 4)
    assert {reason: count for reason, count in statistics.refused.items() if count} == {"forged": 2, "unsigned": 2}
    assert [text.split(":")[0] for text in said(caplog, "datagram_refused") if "with two" in text] == [
        "the discovery group with two refuses a datagram (forged)",
        "the discovery group with two refuses a datagram (unsigned)",
    ]


async def test_a_forged_node_that_is_ever_elsewhere_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meshq.discovery")
    lan = MemoryBroadcast()
    channel = await lan.open(real_env())
    async with node("a", DiscoveryGroup("lan", lan)):
        for number in range(1, 201):
            forged = an_announcement(sequence=number, connectors=at(f"tcp://127.0.0.1:{number}"))
            await channel.broadcast(encode_announcement(forged, None))
            await trio.sleep(0.01)
        told = said(caplog, "discovered_node_moved")
        assert told == [f"the node a at tcp://127.0.0.1:{number}: moved" for number in range(2, 52)]
        assert {one.levelno for one in caplog.records if "discovered_node" in getattr(one, "event", "")} == {
            logging.INFO
        }


async def test_bad_datagrams_are_counted_by_reason_and_change_nothing() -> None:
    lan = MemoryBroadcast()
    group = DiscoveryGroup("lan", lan, secret=SECRET.decode())
    good = encode_announcement(an_announcement(name="b"), SECRET)
    wrong = [b"hello", b"MQDA\x02", b"MQDA\x01", good[:-1] + b"x", encode_announcement(an_announcement(), None)]
    async with node("a", group):
        await trio.testing.wait_all_tasks_blocked()
        channel = await lan.open(real_env())
        for datagram in (good, good, *wrong):
            await channel.broadcast(datagram)
        await trio.testing.wait_all_tasks_blocked()
        assert [one.name for one in group.nodes()] == ["b"]
        refused = {reason: count for reason, count in group.statistics().refused.items() if count}
    assert refused == {"replayed": 1, "foreign": 1, "newer_version": 1, "malformed": 1, "forged": 1, "unsigned": 1}


@pytest.mark.parametrize("what", ["open", "receive"])
async def test_a_group_that_can_not_listen_says_so_and_listens_as_soon_as_it_can(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    lan = Unusable()
    lan.broken = [what]
    group = DiscoveryGroup("lan", lan)
    async with (
        node("a", group) as broker,
        node("b", BroadcastGroup("lan", lan.inner, connectors=["me"])),
        broker.client() as client,
    ):
        with pytest.raises(CallTimeoutError, match="0 of 1 nodes after 10 s"):
            await group.wait_for()
        assert said(caplog, "cannot_listen") == [f"the discovery group lan can't listen: {what} is broken"]
        await client.send("orders", b"served")
        lan.broken = []
        await group.wait_for(1)


async def test_nodes_leave_also_while_the_endpoint_is_broken() -> None:
    lan = Unusable()
    group = DiscoveryGroup("lan", lan)
    async with node("a", group):
        async with node("b", BroadcastGroup("lan", lan, connectors=["me"])):
            await group.wait_for(1)
            lan.broken = ["open", "receive"]
        await trio.sleep(11.0)
        assert group.nodes() == ()


@pytest.mark.parametrize(("refresh", "warned"), [(2.0, True), (3.9, True), (4.0, False), (10.0, False)])
async def test_a_refresh_timeout_that_is_not_well_above_the_period_is_warned_of(
    refresh: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lan = MemoryBroadcast()
    async with (
        node("a", DiscoveryGroup("lan", lan, refresh_timeout=refresh)),
        node("b", BroadcastGroup("lan", lan, connectors=["me"])),
    ):
        await trio.sleep(10.0)
    text = (
        f"the discovery group lan drops nodes after {refresh:g} s, and b announces itself each 2 s: it will come and go"
    )
    assert said(caplog, "refresh_timeout_too_short") == [text] * warned


async def test_waiting_ends_with_the_time_or_with_the_broker_and_refuses_what_can_not_be() -> None:
    group = DiscoveryGroup("lan", MemoryBroadcast(), initial_wait_timeout=3.0)
    for call in (group.nodes, group.statistics):
        with pytest.raises(NotActiveError, match="the discovery group 'lan' is not served"):
            call()
    with pytest.raises(NotActiveError):
        await group.wait_for()
    async with trio.open_nursery() as nursery, node("a", group):
        begun = trio.current_time()
        with pytest.raises(CallTimeoutError, match="0 of 2 nodes after 3 s"):
            await group.wait_for(2)
        assert trio.current_time() - begun == pytest.approx(3.0)
        for wrong in ({"nodes": -1}, {"nodes": 1.5}, {"timeout": -1}, {"timeout": "1"}):
            with pytest.raises(SettingsError, match=next(iter(wrong))):
                await group.wait_for(**wrong)  # type: ignore[arg-type]
        await group.wait_for(0)
        nursery.start_soon(_stopped_while_it_waits, group)
        await trio.testing.wait_all_tasks_blocked()


async def _stopped_while_it_waits(group: DiscoveryGroup) -> None:
    with trio.fail_after(60.0), pytest.raises(NotActiveError):
        await group.wait_for(1, timeout=math.inf)


# -- the same over real endpoints


def endpoints(tmp_path: Path) -> Sequence[tuple[str, BroadcastEndpoint]]:
    first, *rest = free_ports(4)
    return [
        ("multicast", UDPMulticast("231.7.7.7", first, bind_address=LOOPBACK)),
        ("directory", SharedDirectory(tmp_path / "shared", "lan")),
        ("list", StaticUnicast([f"{LOOPBACK}:{port}" for port in rest])),
    ]


@pytest.mark.real
async def test_three_brokers_find_each_other_by_each_endpoint(tmp_path: Path) -> None:
    for kind, endpoint in endpoints(tmp_path):
        groups = [DiscoveryGroup("lan", endpoint) for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for number, group in enumerate(groups):
                announced = BroadcastGroup("lan", endpoint, connectors=["me"], broadcast_period=0.1)
                broker = node(f"{kind}-{number}", announced, group, env=real_env())
                await nursery.start(broker.run)
            for group in groups:
                await group.wait_for(2)
            nursery.cancel_scope.cancel()
