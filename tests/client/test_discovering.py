"""Clients that are told nothing but where brokers announce themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from meshq import (
    BroadcastGroup,
    Broker,
    ClientFactory,
    ClosedError,
    ConnectionBrokenError,
    DiscoveryGroup,
    SettingsError,
    abc,
    connect,
)
from meshq.client import Client, factory_of
from meshq.discovery import UDPMulticast
from meshq.discovery._datagram_format import encode_announcement
from meshq.settings import TLS
from meshq.testing import MemoryBroadcast, MemoryDatagrams
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until, until_attached
from tests.discovery.kit import SECRET, an_announcement, at

URL = "udp://231.7.7.7:9876"
LAN = UDPMulticast("231.7.7.7", 9876)
PERIOD_S = 2.0


@attrs.define(eq=False)
class Lan:
    """A network with nodes at 127.0.0.1, ports 1, 2, ...; a test says which of them announce themselves."""

    nodes: list[FakeNode]
    announced: set[int]
    env: abc.Env
    datagrams: MemoryDatagrams
    endpoint: UDPMulticast = LAN
    secret: bytes | None = None
    urls: dict[int, str] = attrs.field(factory=dict)

    async def announce(self) -> None:
        """Each node announces itself at once and then every two seconds."""
        opened = await self.datagrams.host("brokers").bind("", 0)
        number = 0
        while True:
            number += 1
            for port in sorted(self.announced):
                url = self.urls.get(port, f"tcp://127.0.0.1:{port}")
                node = bytes([port]) * 16
                announcement = an_announcement(
                    node_id=node, instance=node, sequence=number, name=str(port), connectors=at(url)
                )
                datagram = encode_announcement(announcement, self.secret)
                await opened.send(datagram, self.endpoint.group, self.endpoint.port)
            await trio.sleep(PERIOD_S)

    @property
    def connected(self) -> list[int]:
        """How many sessions each node has."""
        return [len(node.sessions) for node in self.nodes]


@asynccontextmanager
async def lan(announced: Iterable[int] = (1, 2, 3), **changed: Any) -> AsyncIterator[Lan]:
    nodes = [FakeNode(name=name, node_id=name.encode() * 16) for name in "abc"]
    env, _ = fake_env(*nodes)
    datagrams = MemoryDatagrams()
    env = attrs.evolve(env, datagrams=datagrams.host("client"))
    with trio.fail_after(1_000):
        async with trio.open_nursery() as nursery:
            made = Lan(nodes, set(announced), env, datagrams, **changed)
            nursery.start_soon(made.announce)
            yield made
            nursery.cancel_scope.cancel()


def open_sockets(made: Lan) -> int:
    """How many sockets the client's host has."""
    return sum(one.machine == "client" for one in made.datagrams._sockets)


# -- the first connection


async def test_a_client_that_knows_only_the_group_connects_when_its_wait_is_over() -> None:
    async with lan() as made:
        begun = trio.current_time()
        async with connect(URL, env=made.env) as client:
            assert trio.current_time() - begun == pytest.approx(10.0)
            await client.send("q", b"1")
        assert sum(len(node.bodies) for node in made.nodes) == 1


async def test_a_factory_that_was_made_before_connects_as_soon_as_one_broker_is_known() -> None:
    async with lan() as made:
        factory = ClientFactory(URL, env=made.env)
        await trio.sleep(12.5)
        begun = trio.current_time()
        async with factory.connect():
            assert trio.current_time() - begun <= PERIOD_S
            begun = trio.current_time()
            async with factory.connect():
                assert trio.current_time() == begun


async def test_the_wait_ends_when_as_many_brokers_are_known_as_are_wanted() -> None:
    async with lan([1]) as made:
        begun = trio.current_time()
        async with connect(f"{URL}?initial_wait_for=1", env=made.env):
            assert trio.current_time() - begun <= PERIOD_S
        begun = trio.current_time()
        async with connect(f"{URL}?initial_wait_for=2&initialWaitTimeout=5000", env=made.env):
            assert trio.current_time() - begun == pytest.approx(5.0)


async def test_when_nobody_announces_itself_in_time_the_error_names_the_place() -> None:
    async with lan([]) as made:
        begun = trio.current_time()
        with pytest.raises(ConnectionBrokenError, match="no broker has announced itself") as caught:
            await connect(f"{URL}?initial_wait_timeout=3", env=made.env).__aenter__()
        assert trio.current_time() - begun == pytest.approx(3.0)
        assert "udp://231.7.7.7:9876:" in str(caught.value) and caught.value.outcome == "not_done"
        await until(lambda: open_sockets(made) == 0)


async def test_an_endpoint_that_can_not_be_used_is_named_by_the_error() -> None:
    async with lan([]) as made:
        taken = await made.env.datagrams.bind("127.0.0.1", 5432)
        url = f"{URL}?bind_address=127.0.0.1&bind_port=5432&initial_wait_timeout=3"
        with pytest.raises(ConnectionBrokenError, match=r"127\.0\.0\.1:5432 can't be bound"):
            await connect(url, env=made.env).__aenter__()
        taken.close()


async def test_a_broker_that_may_not_be_dialed_is_no_broker_and_the_error_says_why() -> None:
    async with lan([1], urls={1: "tcp://far:1"}) as made:
        with pytest.raises(ConnectionBrokenError, match="tcp://far:1 is plaintext beyond this machine"):
            await connect(f"{URL}?initial_wait_for=1", env=made.env).__aenter__()
    async with lan([1]) as made:
        with pytest.raises(ConnectionBrokenError, match="is no tls:// connector, and the client has tls="):
            await connect(f"{URL}?initial_wait_for=1", env=made.env, tls=TLS()).__aenter__()


# -- at work


async def test_connections_of_a_factory_are_spread_over_the_brokers() -> None:
    async with lan() as made:
        factory = ClientFactory(f"{URL}?initial_wait_for=3", env=made.env)
        async with factory.connect() as one, one.session(), factory.connect():
            assert made.connected == [1, 1, 1]


async def test_a_client_moves_to_a_broker_that_came_later_and_not_to_one_that_fell_silent() -> None:
    async with lan([1]) as made, connect(f"{URL}?initial_wait_for=1", env=made.env) as client:
        made.announced = {3}
        await trio.sleep(11.0)
        assert client.statistics().node_name == "a" and client.statistics().connected == 1
        made.nodes[0].up = False
        made.nodes[0].cut()
        await until_attached(client, 2)
        assert client.statistics().node_name == "c"


async def test_when_nobody_is_heard_any_more_the_last_list_holds() -> None:
    async with lan([1, 2]) as made, connect(f"{URL}?initial_wait_for=2", env=made.env) as client:
        made.announced = set()
        await trio.sleep(30.0)
        first = client.statistics().node_name
        lost = next(node for node in made.nodes if node.name == first)
        lost.up = False
        lost.cut()
        await until_attached(client, 2)
        assert {first, client.statistics().node_name} == {"a", "b"}


async def test_the_refresh_timeout_says_how_long_a_silent_broker_is_known() -> None:
    async with lan([1, 2]) as made:
        url = f"{URL}?refreshTimeout=5000&initial_wait_for=2"
        factory = ClientFactory(url, env=made.env)
        async with factory.connect():
            made.announced = {2}
            await trio.sleep(5.0)
            begun = trio.current_time()
            for _ in range(4):
                async with factory.connect() as client:
                    assert client.statistics().node_name == "b"
            # Fewer are known than were waited for; only the first connection waited.
            assert trio.current_time() == begun


# -- listening


async def test_the_group_is_left_with_the_last_client_and_the_next_client_listens_on() -> None:
    async with lan() as made:
        factory = ClientFactory(f"{URL}?initial_wait_for=3", env=made.env)
        first = factory.connect()
        async with first:
            one = open_sockets(made)
            async with factory.connect() as second:
                await trio.sleep(1.0)
                assert open_sockets(made) == one
                await first.close()
                await trio.sleep(1.0)
                assert open_sockets(made) == one > 0
                # It hears what is announced now.
                made.announced = {2}
                await trio.sleep(11.0)
                for node in (made.nodes[0], made.nodes[2]):
                    node.up = False
                    node.cut()
                await until(lambda: second.statistics().node_name == "b")
        assert open_sockets(made) == 0


@pytest.mark.parametrize("checkpoints", range(12))
async def test_a_client_that_is_cancelled_while_it_waits_leaves_nothing(checkpoints: int) -> None:
    async with lan() as made:
        factory = ClientFactory(f"{URL}?initial_wait_for=3", env=made.env)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Result().of, factory.connect().__aenter__)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert open_sockets(made) == 0
        async with factory.connect() as client:
            await client.send("q", b"1")


async def test_a_client_that_is_closed_while_it_waits_says_so() -> None:
    async with lan([]) as made, trio.open_nursery() as nursery:
        client, result = connect(URL, env=made.env), Result()
        nursery.start_soon(result.of, client.__aenter__)
        await trio.sleep(1.0)
        await client.close()
        await until(lambda: result.done)
        assert "closed" in str(result.error) and open_sockets(made) == 0


def test_a_factory_outlives_a_run_of_trio_and_believes_nothing_that_was_heard_in_it() -> None:
    place = MemoryBroadcast()
    env, _ = fake_env(FakeNode())
    factory = ClientFactory(DiscoveryGroup("own", place, initial_wait_timeout=3.0), env=env)

    async def connects(*, begin_at: float, announced: bool) -> None:
        # Each run has a clock of its own; this one is set back.
        await trio.sleep(begin_at)
        channel = await place.open(env)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(entered, factory.connect())
            await trio.sleep(1.0)
            if announced:
                await channel.broadcast(encode_announcement(an_announcement(connectors=at("tcp://127.0.0.1:1")), None))
        assert trio.current_time() - begin_at == pytest.approx(3.0)
        channel.close()

    async def entered(client: Client) -> None:
        async with client:
            pass

    for begin_at, announced in ((100.0, True), (0.0, False)):
        trio.run(partial(connects, begin_at=begin_at, announced=announced), clock=MockClock(autojump_threshold=0))


# -- other ways to name the place


async def test_a_discovery_group_as_an_object_behaves_like_the_url() -> None:
    async with lan() as made:
        factory = ClientFactory(DiscoveryGroup("lan", LAN), env=made.env)
        begun = trio.current_time()
        async with factory.connect():
            assert trio.current_time() - begun == pytest.approx(10.0)
        begun = trio.current_time()
        async with connect(DiscoveryGroup("lan", LAN, initial_wait_timeout=4.0), env=made.env):
            assert trio.current_time() - begun == pytest.approx(4.0)


async def test_with_the_secret_of_a_group_only_what_is_signed_counts() -> None:
    group = DiscoveryGroup("lan", LAN, secret=SECRET.decode())
    async with lan(secret=SECRET) as made, connect(group, env=made.env) as client:
        assert client.statistics().connected == 1
    async with lan() as made:
        with pytest.raises(ConnectionBrokenError, match="no broker has announced itself"):
            await connect(group, env=made.env).__aenter__()


async def test_a_named_multicast_group_is_found_by_its_name_and_by_no_other_one() -> None:
    async with lan(endpoint=UDPMulticast.named("default")) as made:
        for url in ("multicast://default?initial_wait_for=3", "discovery:(multicast:default)?initial_wait_for=3"):
            async with connect(url, env=made.env) as client:
                assert client.statistics().connected == 1
        with pytest.raises(ConnectionBrokenError, match="multicast://another: no broker has announced"):
            await connect("multicast://another", env=made.env).__aenter__()


async def test_an_agent_with_a_fixed_list_takes_one_of_it_and_the_other_one_when_that_stops() -> None:
    async with lan([]) as made:
        url = "discovery://(static://(tcp://127.0.0.1:1,tcp://127.0.0.1:2))"
        async with connect(url, env=made.env) as client:
            assert sorted(made.connected) == [0, 0, 1]
            first = next(node for node in made.nodes if node.sessions)
            first.up = False
            first.cut()
            await until_attached(client, 2)
            assert {first.name, client.statistics().node_name} == {"a", "b"}
        begun = set()
        for _ in range(30):
            made.nodes[0].up = made.nodes[1].up = True
            async with connect(url, env=made.env) as client:
                begun.add(client.statistics().node_name)
        assert begun == {"a", "b"}


async def test_a_static_list_needs_nothing_of_the_brokers() -> None:
    async with lan([]) as made:
        for url in ("static:(tcp://127.0.0.1:9,tcp://127.0.0.1:2)", "static://(tcp://127.0.0.1:2)?call_timeout=3"):
            async with connect(url, env=made.env) as client:
                assert client.statistics().node_name == "b"


async def test_discovery_tries_again_after_10_20_and_40_ms_and_gives_up_after_as_many_attempts_as_allowed() -> None:
    async with lan([]) as made:
        for options, waited in (("", 0.03), ("&useExponentialBackOff=false", 0.02), ("&backOffMultiplier=3", 0.04)):
            begun = trio.current_time()
            url = f"discovery:(static:(tcp://127.0.0.1:8))?maxReconnectAttempts=3{options}"
            with pytest.raises(ConnectionBrokenError, match="all attempts to connect are used up"):
                await connect(url, env=made.env).__aenter__()
            assert trio.current_time() - begun == pytest.approx(waited, abs=0.001)


@attrs.define
class BlackHole(abc.Network):
    """A network in which nobody answers; notes how long each attempt waits."""

    waited: list[float] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> abc.Stream:
        begun = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            self.waited.append(trio.current_time() - begun)
        raise AssertionError

    async def listen(self, host: str, port: int) -> abc.Listener:
        raise AssertionError


@pytest.mark.parametrize("written", ["connectionTimeout=10000", "connection_timeout=10"])
async def test_an_option_of_places_is_that_of_each_broker_found_and_a_connection_has_that_long(written: str) -> None:
    async with lan(endpoint=UDPMulticast.named("default")) as made:
        hole = BlackHole()
        url = f"discovery://(multicast://default)?{written}&maxReconnectAttempts=3&initial_wait_for=3"
        factory = ClientFactory(url, env=attrs.evolve(made.env, network=hole))
        with pytest.raises(ConnectionBrokenError, match=rf"tcp://127.0.0.1:\d\?{written} can't be reached"):
            await factory.connect().__aenter__()
        # Three rounds over three brokers.
        assert hole.waited == [pytest.approx(10.0)] * 9
        found = factory._targets.topology.endpoints()
        # What discovery knows itself is used up.
        assert [endpoint.options for endpoint in found] == [(tuple(written.split("=")),)] * 3


@attrs.define
class RegistryChannel(abc.BroadcastChannel):
    """A member's end of a registry: puts the member's last announcement there, and looks at all of them."""

    entries: dict[int, bytes]
    seen: dict[int, bytes] = attrs.field(factory=dict)
    closed: bool = False

    async def broadcast(self, datagram: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.entries[id(self)] = datagram

    async def receive(self) -> bytes:
        while True:
            await trio.sleep(0.1)
            if self.closed:
                raise ClosedError("the channel is closed")
            for member, datagram in self.entries.items():
                if self.seen.get(member) != datagram:
                    self.seen[member] = datagram
                    return datagram

    def close(self) -> None:
        self.closed = True


@attrs.frozen
class Registry(abc.BroadcastEndpoint):
    """A registry of somebody else's, in which a broker's entry is what it would announce."""

    entries: dict[int, bytes] = attrs.field(factory=dict)

    async def open(self, env: abc.Env) -> abc.BroadcastChannel:
        await trio.lowlevel.checkpoint()
        return RegistryChannel(self.entries)


async def test_a_registry_is_plugged_in_as_an_endpoint_of_the_users_own() -> None:
    registry = Registry()
    env = fake_env()[0]
    places = {"me": "tcp://127.0.0.1:1"}
    announcing = BroadcastGroup("registry", registry, connectors=["me"])
    async with lan([]) as made, Broker("a", data_dir=None, connectors=places, services=[announcing], env=env):
        async with connect(DiscoveryGroup("registry", registry), env=made.env) as client:
            assert client.statistics().node_name == "a"
        assert len(registry.entries) == 1


# -- where it is not for


def test_a_node_is_not_linked_to_others_by_a_url_of_discovery() -> None:
    with pytest.raises(SettingsError, match="only clients discover them by a URL"):
        factory_of(URL, "target", env=fake_env()[0])


def test_a_memory_endpoint_of_the_users_own_is_as_good_as_the_built_in_ones() -> None:
    factory = ClientFactory(DiscoveryGroup("own", MemoryBroadcast()))
    assert factory.endpoints == () and repr(factory) == "<ClientFactory own>"
