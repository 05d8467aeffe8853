"""Nodes that are told nothing but one discovery group: they find each other, and whoever moves is found again."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from meshq import BroadcastGroup, Broker, ClusterConnection, Delivery, DiscoveryGroup, SettingsError, abc, connect
from meshq.abc import BroadcastEndpoint
from meshq.cluster._dial_plan import LOOK_PAUSE_S, DialPlan, DialRules
from meshq.discovery import SharedDirectory, StaticUnicast, UDPMulticast
from meshq.discovery._datagram_format import encode_announcement
from meshq.testing import MemoryNetwork, SimDisk
from tests.cluster.hosts import NETWORK, Hosts
from tests.cluster.kit import PATIENCE_S, simulated, until
from tests.cluster.test_lost_nodes import numbered
from tests.discovery.kit import an_announcement, at
from tests.discovery.test_groups import said
from tests.process import Process

LAN = UDPMulticast("231.7.7.7", 9876)
FAST: dict[str, Any] = {"connection_ttl": 2.0, "check_period": 0.5, "retry_interval": 0.1, "max_retry_interval": 0.5}


@attrs.frozen
class FileServer(BroadcastEndpoint):
    """The directory of a file server, which all machines reach."""

    inner: SharedDirectory
    disk: SimDisk

    async def open(self, env: abc.Env) -> abc.BroadcastChannel:
        return await self.inner.open(attrs.evolve(env, disk=self.disk))


@attrs.define(eq=False)
class Finders(Hosts):
    """Nodes that are told nothing but an endpoint; each life of a node may have another port."""

    endpoint: BroadcastEndpoint = LAN
    ports: dict[str, int] = attrs.field(factory=dict)
    static: dict[str, list[str]] = attrs.field(factory=dict)
    #: Other endpoints of single nodes; and endpoints of nodes that have more than one cluster.
    endpoints: dict[str, BroadcastEndpoint] = attrs.field(factory=dict)
    also: dict[str, list[BroadcastEndpoint]] = attrs.field(factory=dict)
    #: The numbers of clusters of nodes, if these are not the first ones.
    numbers: dict[str, int] = attrs.field(factory=dict)
    #: The groups of nodes that share one with somebody else.
    groups: dict[str, DiscoveryGroup] = attrs.field(factory=dict)

    def url(self, name: str) -> str:
        return f"tcp://{name}:{self.ports.get(name, 5000)}?insecure=true"

    def machine(self, name: str) -> abc.Env:
        return attrs.evolve(super().machine(name), datagrams=self.network.datagrams.host(name))

    def make(self, name: str) -> Broker:
        services: list[abc.Service] = []
        first = self.numbers.get(name, 1)
        for number, endpoint in enumerate(self.also.get(name, [self.endpoints.get(name, self.endpoint)]), first):
            suffix = f" {number}" if number > 1 else ""
            group = self.groups.get(name) or DiscoveryGroup(f"lan{suffix}", endpoint)
            services += [
                BroadcastGroup(f"lan{suffix}", endpoint, connectors=["me"]),
                ClusterConnection(
                    f"mesh{suffix}",
                    discovery=group,
                    static_connectors=self.static.get(name, ()),
                    load_balancing=self.mode,
                    **{"connector": "me", "user": "u", "password": "p", **FAST, **self.cluster},
                ),
            ]
        return Broker(
            name,
            **{
                "data_dir": f"/data/{name}",
                "acceptors": [self.url(name)],
                "connectors": {"me": self.url(name)},
                "services": services,
                "env": self.lives[name].env,
                **self.broker,
                **self.own.get(name, {}),
            },
        )

    async def announced(self, **changed: Any) -> None:
        """Send an announcement that no node has sent."""
        sender = await self.network.datagrams.host("stranger").bind("", 0)
        await sender.send(encode_announcement(an_announcement(**changed), None), LAN.group, LAN.port)
        sender.close()


@asynccontextmanager
async def finders(names: str = "abc", **settings: Any) -> AsyncIterator[Finders]:
    """Nodes that are started."""
    sure = attrs.evolve(NETWORK, datagram_lost_chance=0.0, datagram_doubled_chance=0.0)
    settings.setdefault("network", MemoryNetwork(random.Random(0), sure))
    with trio.fail_after(PATIENCE_S * 20):
        async with trio.open_nursery() as nursery:
            urls = {name: f"tcp://{name}:5000?insecure=true" for name in names}
            made = Finders(nursery, simulated(), urls, "/data", simulated=True, **settings)
            nursery.start_soon(made.network.run)
            await made.start(*names)
            yield made
            nursery.cancel_scope.cancel()


async def joined(nodes: Finders, *names: str) -> None:
    for name in names:
        await nodes.known(name).wait_for(nodes=len(names), timeout=30)


def at_both_ports(name: str) -> dict[str, Any]:
    """Return the settings of a node that listens at two ports."""
    return {"acceptors": [f"tcp://{name}:{port}?insecure=true" for port in (5000, 5001)]}


def peers(nodes: Finders, name: str) -> dict[str, str]:
    return {peer.connector: peer.state for peer in nodes.known(name).peers()}


# -- forming


async def test_three_nodes_that_know_nothing_but_a_multicast_group_form_a_cluster_and_share_messages() -> None:
    async with finders() as nodes:
        await joined(nodes, *"abc")
        got: dict[str, list[Delivery]] = {name: [] for name in "abc"}
        for name in "abc":
            await nodes.nursery.start(nodes.serve_queue, name, got[name])
        for name in "abc":
            await nodes.known(name).wait_for(queue="q", consumers=3, timeout=5)
        await nodes.send("a", numbered(30))
        await until(lambda: sum(map(len, got.values())) == 30)
        assert {name: len(there) for name, there in got.items()} == {"a": 10, "b": 10, "c": 10}
        assert peers(nodes, "a") == {nodes.url("b"): "linked", nodes.url("c"): "linked"}


async def test_four_nodes_that_find_each_other_have_twelve_links_and_know_all_queues() -> None:
    own = {name: {"queues": [f"only-{name}"]} for name in "abcd"}
    async with finders("abcd", own=own) as nodes:
        await joined(nodes, *"abcd")
        links = 0
        for name in "abcd":
            others = [other for other in "abcd" if other != name]
            assert peers(nodes, name) == {nodes.url(other): "linked" for other in others}
            links += len(others)
            assert sorted(one.queue for one in nodes.known(name).bindings()) == [f"only-{other}" for other in others]
        assert links == 12


async def test_a_cluster_forms_in_the_same_way_by_a_list_of_addresses() -> None:
    async with finders(endpoint=StaticUnicast(["a:7", "b:7", "c:7"])) as nodes:
        await joined(nodes, *"abc")


async def test_a_cluster_forms_in_the_same_way_by_a_shared_directory() -> None:
    async with finders(endpoint=FileServer(SharedDirectory("/shared", "lan"), SimDisk(random.Random(0)))) as nodes:
        await joined(nodes, *"abc")


async def test_a_node_that_starts_later_is_found_by_all_and_finds_all() -> None:
    async with finders("ab") as nodes:
        await joined(nodes, *"ab")
        await nodes.start("c")
        await joined(nodes, *"abc")


async def test_a_node_of_the_settings_and_an_announced_one_are_both_linked_and_none_is_dialed_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with finders(static={"a": ["tcp://b:5000/?insecure=true"]}) as nodes:
        await joined(nodes, *"abc")
        await trio.sleep(5)
        assert sorted(peers(nodes, "a").values()) == ["linked", "linked"]
    assert said(caplog, "peer_twice") == []


async def test_the_group_of_a_cluster_connection_is_a_service_of_its_broker() -> None:
    async with finders("ab") as nodes:
        await joined(nodes, *"ab")
        group = nodes.brokers["a"].service("lan", kind="discovery_group")
        assert [node.name for node in group.nodes()] == ["b"]


def test_a_group_that_is_named_among_the_services_too_is_one_service() -> None:
    group = DiscoveryGroup("lan", LAN)
    first, second = (
        ClusterConnection(name, connector="me", discovery=group, address=name) for name in ("first", "second")
    )
    for services in ([first, second, group], [group, first, second], [first, second]):
        broker = Broker("a", data_dir=None, connectors={"me": "tcp://127.0.0.1:1"}, services=services)
        assert broker.service("lan") is group
    other = DiscoveryGroup("lan", LAN)
    with pytest.raises(SettingsError, match="different names for services of the kind 'discovery_group'"):
        Broker("a", data_dir=None, connectors={"me": "tcp://127.0.0.1:1"}, services=[first, other])


@pytest.mark.parametrize(
    ("url", "allowed"),
    [("inproc://a", "tcp://HOST:PORT or tls://HOST:PORT"), ("tcp://0.0.0.0:5000", "which other machines can dial")],
)
async def test_with_discovery_the_own_connector_is_one_that_can_be_announced(url: str, allowed: str) -> None:
    mesh = ClusterConnection("mesh", connector="me", discovery=DiscoveryGroup("lan", LAN), user="u", password="p")
    with pytest.raises(SettingsError, match=allowed):
        async with Broker("a", data_dir=None, connectors={"me": url}, services=[mesh]):
            pass


@pytest.mark.parametrize(
    "endpoint",
    [UDPMulticast("231.7.7.8", 9876), UDPMulticast("231.7.7.7", 9877), StaticUnicast(["a:9876"])],
    ids=["another group", "another port", "another kind"],
)
async def test_a_node_at_another_endpoint_is_not_found_and_at_the_same_one_it_is(endpoint: BroadcastEndpoint) -> None:
    async with finders("ab", endpoints={"b": endpoint}) as nodes:
        await trio.sleep(30)
        assert [nodes.known(name).nodes() for name in "ab"] == [1, 1]
        await nodes.stop("b")
        nodes.endpoints.clear()
        await nodes.start("b")
        await joined(nodes, *"ab")


async def test_a_broker_with_two_groups_is_in_two_clusters_that_do_not_meet() -> None:
    lan, other = (UDPMulticast(f"231.7.7.{number}", 9876) for number in (7, 8))
    async with finders("ab", endpoints={"b": other}, also={"c": [lan, other]}, numbers={"b": 2}) as nodes:
        await nodes.start("c")
        clusters = [nodes.brokers["c"].cluster(name) for name in ("mesh", "mesh 2")]
        for cluster in clusters:
            await cluster.wait_for(nodes=2, timeout=30)
        await trio.sleep(10)
        assert [[peer.node_name for peer in cluster.peers()] for cluster in clusters] == [["a"], ["b"]]
        assert [nodes.brokers[name].cluster(known).nodes() for name, known in (("a", "mesh"), ("b", "mesh 2"))] == [
            2,
            2,
        ]


async def test_four_nodes_that_discover_each_other_have_twelve_links() -> None:
    async with finders("abcd") as nodes:
        await joined(nodes, *"abcd")
        assert [len([one for one in nodes.known(name).peers() if one.connected]) for name in "abcd"] == [3, 3, 3, 3]


@pytest.mark.slow
async def test_one_group_serves_a_cluster_connection_and_a_client_and_both_need_it_only_to_connect() -> None:
    group = DiscoveryGroup("lan", LAN)
    async with finders("ab") as nodes:
        nodes.groups["c"] = group
        await nodes.start("c")
        await joined(nodes, *"abc")
        env = attrs.evolve(nodes.env, network=nodes.network.host("x"), datagrams=nodes.network.datagrams.host("x"))
        async with connect(group, env=env, insecure=True) as client:
            nodes.network.datagrams.cut()
            await trio.sleep(60)
            assert group.nodes() == ()
            assert peers(nodes, "c") == {nodes.url("a"): "linked", nodes.url("b"): "linked"}
            await client.send("q", b"1")
            assert client.statistics().connected == 1


# -- moving and leaving


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_node_that_comes_back_at_another_port_is_linked_there_and_gets_what_waits_for_it(how: str) -> None:
    async with finders(mode="strict", broker={"queues": ["q"]}) as nodes:
        await joined(nodes, *"abc")
        await nodes.send("a", numbered(9))
        await until(lambda: not any(peer.waiting for peer in nodes.known("a").peers()))
        await (nodes.stop("b") if how == "stopped" else nodes.crash("b"))
        await until(lambda: peers(nodes, "a")["tcp://b:5000?insecure=true"] != "linked")
        if how == "killed":
            await nodes.send("a", numbered(9, 9))
        nodes.ports["b"] = 5001
        await nodes.start("b")
        await joined(nodes, *"abc")
        await until(lambda: not any(peer.waiting for peer in nodes.known("a").peers()))
        for name in "ac":
            await until(
                lambda name=name: (
                    "tcp://b:5000?insecure=true" not in peers(nodes, name)
                    and peers(nodes, name)["tcp://b:5001?insecure=true"] == "linked"
                )
            )
        await nodes.send("a", numbered(9, 18))
        await until(lambda: not any(peer.waiting for peer in nodes.known("a").peers()))
        left = await nodes.left()
        assert left["b/q"] == (9 if how == "killed" else 6)
        assert sum(left.values()) == (27 if how == "killed" else 18)


async def test_all_nodes_that_come_back_at_other_ports_at_once_form_the_cluster_again() -> None:
    async with finders() as nodes:
        await joined(nodes, *"abc")
        await nodes.crash(*"abc")
        nodes.ports.update({"a": 6000, "b": 6001, "c": 6002})
        await nodes.start(*"abc")
        await joined(nodes, *"abc")
        await until(lambda: len(peers(nodes, "a")) == 2)


async def test_an_announced_node_that_was_never_linked_is_forgotten_with_its_announcement() -> None:
    async with finders("a") as nodes:
        await nodes.announced(name="b", connectors=at("tcp://nobody:5000"))
        await until(lambda: "tcp://nobody:5000?insecure=true" in peers(nodes, "a"))
        await trio.sleep(9.5)
        assert list(peers(nodes, "a")) == ["tcp://nobody:5000?insecure=true"]
        await trio.sleep(1.0)
        assert peers(nodes, "a") == {}


async def test_of_a_node_that_is_gone_and_had_nothing_durable_nothing_is_kept_and_its_place_is_dialed_no_more() -> None:
    async with finders("ab", own={"b": {"data_dir": None}}) as nodes:
        await joined(nodes, *"ab")
        await nodes.crash("b")
        await until(lambda: peers(nodes, "a") == {})
        await nodes.start("b")
        await joined(nodes, *"ab")


async def test_a_node_with_a_durable_queue_is_dialed_also_when_it_is_announced_no_more() -> None:
    async with finders("ab", own={"b": {"queues": ["durable"]}}) as nodes:
        await joined(nodes, *"ab")
        await nodes.crash("b")
        await trio.sleep(30)
        assert peers(nodes, "a") == {"tcp://b:5000?insecure=true": "away"}
        # Nobody hears that it is back.
        nodes.network.datagrams.cut()
        await nodes.start("b")
        await nodes.known("a").wait_for(nodes=2, timeout=10)


async def test_links_go_on_without_discovery_and_nodes_that_knew_each_other_find_each_other_after_a_restart() -> None:
    async with finders("ab", broker={"queues": ["q"]}) as nodes:
        await joined(nodes, *"ab")
        nodes.network.datagrams.cut()
        await trio.sleep(60)
        assert nodes.known("a").nodes() == 2
        assert nodes.brokers["a"].service("lan", kind="discovery_group").nodes() == ()
        await nodes.crash(*"ab")
        await nodes.start(*"ab")
        await joined(nodes, *"ab")


async def test_a_node_that_announces_another_connector_while_it_is_linked_stays_linked() -> None:
    async with finders("ab", own={"b": at_both_ports("b")}) as nodes:
        await joined(nodes, *"ab")
        life = nodes.brokers["b"]
        await nodes.announced(
            node_id=bytes(life.node_id),
            name="b",
            instance=b"\x01" * 16,
            began_ms=1 << 45,
            connectors=at("tcp://b:5001"),
        )
        await until(lambda: peers(nodes, "a").get("tcp://b:5001?insecure=true") == "spare")
        assert peers(nodes, "a")["tcp://b:5000?insecure=true"] == "linked"


# -- what is announced and wrong


async def test_an_announcement_that_leads_to_the_node_itself_is_not_dialed_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with finders("a") as nodes:
        await nodes.announced(name="b", connectors=at("tcp://a:5000"))
        await until(lambda: bool(said(caplog, "announced_node_not_dialed")))
        assert peers(nodes, "a") == {}
    (text,) = said(caplog, "announced_node_not_dialed")
    assert "the node 'b'" in text and "tcp://a:5000 is this node's own connector" in text


async def test_a_connector_that_leads_back_by_another_name_links_nothing_and_is_forgotten() -> None:
    async with finders("a", own={"a": at_both_ports("a")}) as nodes:
        await nodes.announced(name="b", connectors=at("tcp://a:5001"))
        await until(lambda: len(peers(nodes, "a")) == 1)
        await trio.sleep(5)
        assert nodes.known("a").nodes() == 1
        await until(lambda: peers(nodes, "a") == {})


async def test_of_two_nodes_with_one_id_the_earlier_announcement_is_refused_and_both_lives_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with finders("ab") as nodes:
        await joined(nodes, *"ab")
        node = nodes.brokers["b"]
        await nodes.announced(
            node_id=bytes(node.node_id), instance=b"\x01" * 16, began_ms=1, connectors=at("tcp://copy:1")
        )
        await until(lambda: bool(said(caplog, "datagram_refused")))
        await trio.sleep(5)
        assert peers(nodes, "a") == {"tcp://b:5000?insecure=true": "linked"}
    (text,) = said(caplog, "datagram_refused")
    assert "stale_life" in text and "announces two lives" in text and (b"\x01" * 16).hex() in text


async def test_a_node_that_announces_itself_and_has_another_password_is_not_linked() -> None:
    async with finders("a") as nodes:
        other = {"user": "u", "password": "another"}
        stranger = ClusterConnection("mesh", connector="me", **other)
        nodes.lives["x"] = Process(nodes.machine("x"))
        broker = Broker(
            "x",
            data_dir=None,
            acceptors=["tcp://x:5000?insecure=true"],
            env=nodes.lives["x"].env,
            connectors={"me": "tcp://x:5000?insecure=true"},
            services=[stranger],
        )
        await nodes.nursery.start(nodes.lives["x"].live, broker)
        await nodes.announced(name="x", connectors=at("tcp://x:5000"))
        await until(lambda: any(peer.error is not None for peer in nodes.known("a").peers()))
        assert nodes.known("a").nodes() == 1


@pytest.mark.slow
async def test_lost_and_doubled_datagrams_delay_a_cluster_and_nothing_else() -> None:
    lossy = attrs.evolve(NETWORK, datagram_lost_chance=0.5, datagram_doubled_chance=0.5)
    async with finders(network=MemoryNetwork(random.Random(1), lossy)) as nodes:
        await joined(nodes, *"abc")
        await trio.sleep(60)
        assert [nodes.known(name).nodes() for name in "abc"] == [3, 3, 3]


async def test_many_connectors_at_which_nobody_answers_are_not_all_looked_at_for_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    plan = DialRules.plan

    def look(*arguments: Any) -> DialPlan:
        nonlocal looks
        looks += 1
        return plan(*arguments)

    async with finders("a") as nodes:
        for number in range(40):
            # At moments of its own, as each attempt is.
            await trio.sleep(0.0137)
            ids = {"node_id": number.to_bytes(16), "instance": number.to_bytes(16)}
            await nodes.announced(**ids, connectors=at(f"tcp://ghost{number}:5000"))
        monkeypatch.setattr(DialRules, "plan", look)
        await trio.sleep(2.0)
        # Of each an attempt all 0.1 s: eight hundred.
        assert len(nodes.known("a").peers()) == 40
        assert 0 < looks <= 2.0 / (40 * LOOK_PAUSE_S) + 1
