"""What each setting of a cluster connection does to nodes that run, each on a machine of its own."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

from meshq import Broker, CallTimeoutError, ClientFactory, ClusterConnection, ConnectionBrokenError, SettingsError, abc
from meshq.env import real_env
from meshq.settings import Acceptor
from meshq.testing import InlineThreads, MemoryNetwork, NetworkSettings, SimDisk
from tests.cluster.kit import bodies, mesh, until

NETWORK = NetworkSettings(latency_s_min=0.001, latency_s_max=0.001, split_chance=0.0, short_read_chance=0.0)
LOGIN = {"user": "u", "password": "p"}


@attrs.define(eq=False)
class Dials(abc.Network):
    """The network of a machine that remembers when it dialed, and whom."""

    inner: abc.Network
    dialed_at: list[float] = attrs.field(factory=list)
    dialed: list[str] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> Any:
        self.dialed.append(host)
        self.dialed_at.append(trio.current_time())
        return await self.inner.connect(host, port)

    async def listen(self, host: str, port: int) -> Any:
        return await self.inner.listen(host, port)


@attrs.define(eq=False)
class Machines:
    """Brokers by name, each on a machine of its own; ``dials`` of each."""

    network: MemoryNetwork
    nursery: trio.Nursery
    settings: dict[str, dict[str, Any]]
    brokers: dict[str, Broker] = attrs.field(factory=dict)
    dials: dict[str, Dials] = attrs.field(factory=dict)

    async def start(self, name: str, **about: Any) -> None:
        self.dials[name] = Dials(self.network.host(name))
        urls = {one: f"tcp://{one}:5000?insecure=true" for one in self.settings}
        given = {**LOGIN, "static_connectors": [one for one in urls if one != name], **self.settings[name]}
        connection = ClusterConnection("mesh", connector=name, **given)
        env = attrs.evolve(real_env(), disk=SimDisk().mount(), threads=InlineThreads(), local={})
        self.brokers[name] = Broker(
            name,
            **{
                "data_dir": f"/data/{name}",
                "acceptors": [Acceptor(f"tcp://{name}:5000", insecure=True)],
                "connectors": urls,
                "services": [connection],
                "queues": ["q"],
                "env": attrs.evolve(env, network=self.dials[name]),
                **about,
            },
        )
        await self.nursery.start(self.brokers[name].run)

    def known(self, name: str) -> ClusterConnection:
        return self.brokers[name].cluster("mesh")

    async def joined(self, *names: str) -> None:
        for name in names or self.brokers:
            await self.known(name).wait_for(nodes=len(names or self.brokers), queue="q", timeout=60)

    def waits(self, name: str, since: float) -> list[float]:
        """How long a node waited between its dials from a time on."""
        return [later - earlier for earlier, later in pairwise(self.since(name, since))]

    def since(self, name: str, since: float) -> list[float]:
        """When a node dialed from a time on."""
        return [at for at in self.dials[name].dialed_at if at >= since]


@asynccontextmanager
async def machines(start: str = "ab", **settings: dict[str, Any]) -> AsyncIterator[Machines]:
    """Machines of which those in ``start`` are started; settings of each one's cluster connection."""
    with trio.fail_after(3_600):
        async with trio.open_nursery() as nursery:
            network = MemoryNetwork(random.Random(0), NETWORK)
            nursery.start_soon(network.run)
            made = Machines(network, nursery, settings)
            for name in start:
                await made.start(name)
            yield made
            nursery.cancel_scope.cancel()


# -- whom it links to, and as whom


async def test_a_node_with_direct_connections_only_links_to_those_that_are_listed_and_to_nobody_else() -> None:
    lists = {"a": ["b"], "b": ["tcp://c:5000?insecure=true"], "c": []}
    settings = {
        name: {"static_connectors": listed, "allow_direct_connections_only": True} for name, listed in lists.items()
    }
    async with machines("abc", **settings) as nodes:
        await nodes.known("a").wait_for(nodes=2, timeout=5)
        await nodes.known("b").wait_for(nodes=2, timeout=5)
        await trio.sleep(5)
        names = {name: [peer.node_name for peer in nodes.known(name).peers()] for name in "abc"}
        assert names == {"a": ["b"], "b": ["c"], "c": []}
        assert nodes.dials["c"].dialed_at == []


async def test_a_client_without_topology_goes_to_the_nodes_of_its_url_and_to_no_other_of_the_cluster() -> None:
    async with machines("abc", a={}, b={}, c={}) as nodes:
        await nodes.joined()
        dials = Dials(nodes.network.host("shop"))
        env = attrs.evolve(real_env(), threads=InlineThreads(), local={}, network=dials)
        url = "tcp://a:5000?insecure=true"
        factory = ClientFactory(url, env=env, use_topology=False, reconnect_attempts=2)
        async with AsyncExitStack() as stack:
            for _ in range(6):
                await stack.enter_async_context(factory.connect())
            assert dials.dialed == ["a"] * 6
        await nodes.brokers["a"].stop()
        with pytest.raises(ConnectionBrokenError):
            await stack.enter_async_context(factory.connect())
        assert dials.dialed == ["a"] * 7


@pytest.mark.parametrize("differs", ["user", "password"])
async def test_nodes_with_another_user_or_password_do_not_link(differs: str, caplog: pytest.LogCaptureFixture) -> None:
    async with machines("abc", a={}, b={differs: "x"}, c={}) as nodes:
        await nodes.known("a").wait_for(nodes=2, timeout=5)
        await trio.sleep(5)
        names = {name: [peer.node_name for peer in nodes.known(name).peers() if peer.connected] for name in "abc"}
        assert names == {"a": ["c"], "b": [], "c": ["a"]}
        async with nodes.brokers["a"].client() as client:
            await client.send_many("q", [b"x"] * 10)
            assert (await client.queue("q")).ready == 10
    assert {getattr(record, "event", "") for record in caplog.records} >= {"peer_lost"}


async def test_the_connector_is_where_a_node_says_that_it_is(caplog: pytest.LogCaptureFixture) -> None:
    same = bytes(range(16))
    with caplog.at_level(logging.WARNING, "meshq"):
        async with machines("", a={"static_connectors": ["b"]}, b={"static_connectors": []}) as nodes:
            for name in "ab":
                await nodes.start(name, node_id=same)
            await trio.sleep(1)
            assert nodes.known("a").nodes() == 1
    (text, *_) = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "duplicate_node"]
    assert "tcp://a:5000" in text


@pytest.mark.parametrize("name", ["one", "another"])
async def test_the_name_is_that_of_the_queues_in_which_messages_wait_for_other_nodes(name: str) -> None:
    async with mesh("", root="simulated") as nodes:
        nodes.urls |= {"x": "inproc://x", "y": "inproc://y"}
        for one, other in (("x", "y"), ("y", "x")):
            nodes.own[one] = {"services": [ClusterConnection(name, connector=one, static_connectors=[other], **LOGIN)]}
            await nodes.start(one)
        await nodes.brokers["x"].cluster(name).wait_for(nodes=2, timeout=5)
        async with nodes.client("x") as client:
            queues = await client.queues()
        assert queues == [f"$meshq.cluster.{name}.{bytes(nodes.brokers['y'].node_id).hex()}"]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"static_connectors": ["tcp://192.0.2.1:1?insecure=true"]}, "192.0.2.1"),
        ({"static_connectors": ["far"]}, "192.0.2.2"),
        ({"connector": "far"}, "192.0.2.2"),
        ({"static_connectors": ["(tcp://127.0.0.1:1,tcp://192.0.2.3:1)?insecure=true"]}, "192.0.2.3"),
    ],
)
async def test_the_default_password_is_refused_where_a_link_leads_off_the_machine(
    settings: dict[str, Any], url: str
) -> None:
    connectors = {"me": "tcp://127.0.0.1:1", "far": "tcp://192.0.2.2:1?insecure=true"}

    async def start(**login: str) -> None:
        service = ClusterConnection("mesh", **{"connector": "me", **settings, **login})
        async with Broker("n", data_dir=None, connectors=connectors, services=[service]):
            pass

    for login in ({}, {"user": "ACTIVEMQ.CLUSTER.ADMIN.USER", "password": "CHANGE ME!!"}):
        with pytest.raises(SettingsError, match=rf"password.*another one than the default.*{url}") as told:
            await start(**login)
        assert "CHANGE" not in str(told.value)
    # One of the two is another one: nobody else knows it.
    await start(password="another")
    await start(user="another")


# -- which addresses it is for

ADDRESSES = (
    "eu",
    "eu.uk",
    "eu.uk.london",
    "eu.de",
    "eu.fr",
    "europe",
    "us.x",
    "a.eu",
    "news.sport",
)


@pytest.mark.parametrize(
    ("address", "inside", "later"),
    [
        ("", ADDRESSES, (True, True)),
        ("eu", ("eu", "eu.uk", "eu.uk.london", "eu.de", "eu.fr", "europe"), (True, False)),
        ("!eu", ("us.x", "a.eu", "news.sport"), (False, True)),
        ("eu.uk,eu.de", ("eu.uk", "eu.uk.london", "eu.de"), (True, False)),
        ("eu,!eu.uk", ("eu", "eu.de", "eu.fr", "europe"), (False, False)),
        ("!eu.uk,eu", ("eu", "eu.de", "eu.fr", "europe"), (False, False)),
        (" eu.uk , ! eu.uk.l ,eu.de", ("eu.uk", "eu.de"), (True, False)),
        ("eu.*", (), (False, False)),
        ("eu.#", (), (False, False)),
        ("news.*", (), (False, False)),
    ],
)
async def test_an_address_is_the_beginning_of_the_names_that_cross(
    address: str, inside: tuple[str, ...], later: tuple[bool, bool]
) -> None:
    async with mesh("ab", root="simulated", mode="strict", cluster={"address": address}) as nodes:
        for node in "ab":
            async with nodes.client(node) as client:
                for name in ADDRESSES:
                    await client.create_queue(name)
        await nodes.joined("a", "b")
        for name in ADDRESSES:
            await nodes.send("a", [b"1", b"2"], name)
        await trio.sleep(1)
        left = await nodes.left()
        assert left == {f"a/{name}": 1 if name in inside else 2 for name in ADDRESSES} | {
            f"b/{name}": 1 for name in inside
        }
        # What is described later is judged in the same way, and so are subscriptions.
        async with nodes.client("b") as there, there.subscribe("eu.uk.new") as one, there.subscribe("us.new") as other:
            await trio.sleep(1)
            for name in ("eu.uk.new", "us.new"):
                async with nodes.client("a") as here:
                    await here.create_address(name, routing="multicast")
                await nodes.send("a", [b"3"], name)
            await trio.sleep(1)
            got = [bodies(await consumer.receive_many(1, timeout=0.1)) for consumer in (one, other)]
        assert got == [[b"3"] if crosses else [] for crosses in later]


# -- when it dials


WAITS = {"retry_interval": 0.1, "retry_interval_multiplier": 2, "max_retry_interval": 0.4}


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({}, [0.5, 0.5, 0.5, 0.5]),
        ({"retry_interval_multiplier": 2}, [0.5, 1, 2, 2]),
        ({"retry_interval_multiplier": 2, "max_retry_interval": 0.7}, [0.5, 0.7, 0.7, 0.7]),
        (WAITS, [0.1, 0.2, 0.4, 0.4]),
        ({"retry_interval": 0.3, "retry_interval_multiplier": 1, "max_retry_interval": 10}, [0.3] * 4),
        ({"retry_interval": 0.1, "retry_interval_multiplier": 3, "max_retry_interval": 10}, [0.1, 0.3, 0.9, 2.7]),
    ],
)
async def test_after_a_loss_a_link_dials_at_once_and_then_waits_as_it_was_told(
    waits: dict[str, Any], expected: list[float]
) -> None:
    async with machines("ab", a=waits, b={}) as nodes:
        await nodes.joined()
        # A link that was hardly there is not dialed at once.
        await trio.sleep(20)
        lost = trio.current_time()
        nodes.network.kill_host("b")
        await trio.sleep(6)
        # What a dial takes itself is a few milliseconds.
        assert nodes.since("a", lost)[0] == pytest.approx(lost, abs=0.02)
        assert nodes.waits("a", lost)[:4] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [({}, [0.5, 0.5, 0.5, 0.5]), ({"retry_interval_multiplier": 2}, [0.5, 1, 2, 2]), (WAITS, [0.1, 0.2, 0.4, 0.4])],
)
async def test_a_link_to_a_node_that_was_never_there_waits_the_same(
    waits: dict[str, Any], expected: list[float]
) -> None:
    async with machines("a", a=waits, b={}) as nodes:
        await trio.sleep(20)
        assert nodes.waits("a", 0.0)[:4] == pytest.approx(expected, abs=0.02)
        # Without an end: the last wait is the one that stays.
        assert nodes.waits("a", 0.0)[-1] == pytest.approx(expected[-1], abs=0.02)


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("linked_first", [False, True])
async def test_a_node_is_given_up_after_so_many_attempts_at_first_or_after_a_loss(
    attempts: int, linked_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"initial_connect_attempts": attempts, "reconnect_attempts": 7 - attempts}
    if linked_first:
        settings = {"initial_connect_attempts": 7 - attempts, "reconnect_attempts": attempts}
    waits = {"retry_interval": 0.1, "max_retry_interval": 0.1, "check_period": 500.0}
    async with machines("ba", a={**waits, **settings}, b={}) as nodes:
        if linked_first:
            await nodes.joined()
            await trio.sleep(1)
            before = trio.current_time()
            nodes.network.kill_host("b")
        else:
            nodes.network.kill_host("b")
            await trio.lowlevel.checkpoint()
            before = 0.0
        await trio.sleep(60)
        assert len(nodes.since("a", before)) == attempts
        assert [getattr(one, "event", "") for one in caplog.records].count("peer_down") == 1
        # One look in each check period, and no more word of it.
        await trio.sleep(1_100)
        assert len(nodes.since("a", before)) == attempts + 2
        assert [getattr(one, "event", "") for one in caplog.records].count("peer_down") == 1
        assert "peer_lost" not in [getattr(one, "event", "") for one in caplog.records]


@pytest.mark.parametrize("pause", [0.5, 3.0])
async def test_a_node_that_refuses_is_asked_again_when_the_longest_wait_is_over(pause: float) -> None:
    async with machines("ba", a={"user": "x", "retry_interval": 0.1, "max_retry_interval": pause}, b={}) as nodes:
        await trio.sleep(20)
        assert nodes.known("a").nodes() == 1
        # The other node takes its time before it says no, and more of it each time.
        assert nodes.waits("a", 0.0)[0] == pytest.approx(pause, abs=0.3)


@pytest.mark.parametrize("patience", [2.0, 7.0])
async def test_a_node_that_takes_the_call_and_does_not_answer_is_hung_up_on_in_time(patience: float) -> None:
    async with machines("b", a={"call_timeout": patience, "retry_interval": 0.5}, b={}) as nodes:
        nodes.network.pause_host("b")
        began = trio.current_time()
        await nodes.start("a")
        await trio.sleep(40)
        assert nodes.waits("a", began)[:3] == pytest.approx([patience + 0.5] * 3, abs=0.1)
        nodes.network.resume_host("b")
        await until(lambda: nodes.known("a").nodes() == 2)


@pytest.mark.parametrize(("check_period", "ttl"), [(1.0, 10.0), (3.0, 10.0), (1.0, 4.0)])
async def test_a_silent_node_is_noticed_within_the_ttl_and_one_check(check_period: float, ttl: float) -> None:
    settings = {"check_period": check_period, "connection_ttl": ttl, "retry_interval": 0.01}
    async with machines("ab", a=settings, b={"connection_ttl": 1_000.0, "check_period": 500.0}) as nodes:
        await nodes.joined()
        # Nothing is sent: a link that only says now and then that it is there is kept.
        await trio.sleep(10 * ttl)
        began = trio.current_time()
        assert len(nodes.dials["a"].dialed_at) == 1
        nodes.network.pause_host("b")
        await trio.sleep(ttl + check_period + 1)
        (again, *_) = [at for at in nodes.dials["a"].dialed_at if at >= began]
        # The time counts from the last sign of life: a node that has nothing to say asks in each third of it.
        assert ttl - max(check_period, ttl / 3) <= again - began <= ttl + check_period + 0.1


@pytest.mark.parametrize(("size", "kept_min", "kept_max"), [(8_192, 8_192, 12_288), (1_048_576, 60_000, 300_000)])
async def test_what_is_on_its_way_to_a_mute_node_is_bounded_by_the_confirmation_window(
    size: int, kept_min: int, kept_max: int
) -> None:
    settings = {"confirmation_window_size": size, "load_balancing": "strict"}
    async with machines("ab", a=settings, b={"load_balancing": "strict"}) as nodes:
        await nodes.joined()
        link = nodes.known("a")._peers[0].link
        assert link is not None
        nodes.network.pause_host("b")
        async with nodes.brokers["a"].client() as client:
            for _ in range(100):
                await client.send_many("q", [bytes(1_000)] * 4)
            assert kept_min <= link._session.stream.outgoing.kept_bytes <= kept_max
            nodes.network.resume_host("b")
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)
            assert (await client.queue("q")).ready == 200


@pytest.mark.parametrize(("window", "most"), [(1, 1), (5_000, 4), (math.inf, 1_000)])
async def test_a_sender_pauses_until_what_is_under_way_on_its_link_is_stored(window: float, most: int) -> None:
    settings = {"producer_window_size": window, "load_balancing": "strict"}
    async with machines("ab", a=settings, b={"load_balancing": "strict"}) as nodes:
        await nodes.joined()
        link = nodes.known("a")._peers[0].link
        assert link is not None
        nodes.network.pause_host("b")
        async with nodes.brokers["a"].client() as client:
            for number in range(100):
                await client.send("q", b"%04d" % number + bytes(2_000))
            under_way = [run.content.rows for run in link._channel.sent]
            assert len(under_way) <= most
            # The bytes of all but the last frame are less than the window.
            assert link._channel.under_way_bytes < window + 3_000
            assert nodes.known("a").peers()[0].waiting == 50
            nodes.network.resume_host("b")
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)
            assert (await client.queue("q")).ready == 50
        async with nodes.brokers["b"].client() as there, there.consumer("q") as consumer:
            got = [(await consumer.receive(timeout=5)).body[:4] for _ in range(50)]  # type: ignore[union-attr]
            assert got == sorted(got)


async def test_a_window_of_a_link_lets_all_parts_of_a_run_with_many_queues_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.client.session._cluster_link_channel.QUEUES_MAX", 2)
    async with machines("ab", a={"producer_window_size": 1}, b={}) as nodes, nodes.brokers["b"].client() as there:
        await there.create_address("news", routing="multicast")
        for number in range(5):
            await there.create_queue(f"s{number}", address="news", routing="multicast")
        await nodes.known("a").wait_for(nodes=2, queue="s4", timeout=10)
        async with nodes.brokers["a"].client() as here:
            await here.create_address("news", routing="multicast")
            for _ in range(3):
                await here.send("news", b"x")
        await trio.sleep(1)
        assert [(await there.queue(f"s{number}")).ready for number in range(5)] == [3] * 5


async def test_a_link_that_gets_no_answer_for_30_s_is_given_up_and_says_why() -> None:
    async with machines("b", a={}, b={}) as nodes:
        nodes.network.pause_host("b")
        began = trio.current_time()
        await nodes.start("a")
        await trio.sleep(29)
        assert nodes.known("a").peers()[0].error is None
        await trio.sleep(2)
        assert isinstance(nodes.known("a").peers()[0].error, CallTimeoutError)
        assert nodes.waits("a", began)[:1] == pytest.approx([30.5], abs=0.1)


async def test_unconfirmed_on_a_link_is_the_confirmation_window_and_one_message_at_most() -> None:
    size = 32_000
    async with machines("ab", a={"confirmation_window_size": size, "load_balancing": "strict"}, b={}) as nodes:
        await nodes.joined()
        link = nodes.known("a")._peers[0].link
        assert link is not None
        nodes.network.pause_host("b")
        async with nodes.brokers["a"].client() as client:
            for _ in range(200):
                await client.send("q", bytes(1_000))
            assert size < link._session.stream.outgoing.kept_bytes <= size + 1_200
            nodes.network.resume_host("b")
            await until(lambda: nodes.known("a").peers()[0].waiting == 0)


async def test_without_a_confirmation_window_nothing_is_kept_and_a_lost_connection_loses_and_doubles_nothing() -> None:
    lively = {"connection_ttl": 2.0, "check_period": 0.5, "retry_interval": 0.1}
    settings = {"confirmation_window_size": math.inf, "load_balancing": "strict", **lively}
    async with machines("ab", a=settings, b={"load_balancing": "strict", **lively}) as nodes:
        await nodes.joined()
        link = nodes.known("a")._peers[0].link
        assert link is not None
        sent = []
        async with nodes.brokers["a"].client() as client:
            for number in range(100):
                if number == 50:
                    nodes.network.pause_host("b")
                if number == 80:
                    # The node is away, and its share waits for it.
                    await trio.sleep(10)
                    nodes.network.resume_host("b")
                sent.append(b"%d" % number + bytes(1_000))
                await client.send("q", sent[-1])
                assert link._session.stream.outgoing.kept_bytes == 0
            await until(lambda: nodes.known("a").nodes() == 2 and nodes.known("a").peers()[0].waiting == 0)
        got = []
        for broker in nodes.brokers.values():
            async with broker.client() as there, there.consumer("q") as consumer:
                got += [one.body for one in await consumer.receive_many(200, timeout=5)]
        assert sorted(got) == sorted(sent)
