"""Clients that go to the nodes of which they were told."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import (
    Bridge,
    Broker,
    Client,
    ClientFactory,
    ConnectionBrokenError,
    FailedOver,
    SettingsError,
)
from meshq.client import ConnectionEvent, EventStream
from meshq.client import factory_of as link_factory_of
from meshq.env import real_env
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import until

FAST: dict[str, Any] = {"connection_ttl": 2.0, "check_period": 0.5, "retry_interval": 0.1, "max_retry_interval": 0.5}
LINKS = {**FAST, "reconnect_attempts": float("inf")}


def factory_of(nodes: Hosts, listed: str = "a", query: str = "", **settings: Any) -> ClientFactory:
    """A factory on a machine of its own, which lists some nodes."""
    env = attrs.evolve(nodes.env, network=nodes.network.host("shop"), local={})
    url = f"({','.join(f'tcp://{name}:5000' for name in listed)}){query}"
    return ClientFactory(url, env=env, **{**FAST, "insecure": True, **settings})


def node_of(client: Client) -> str:
    """The node that a client is connected to; empty: none."""
    about = client.statistics()
    return about.node_name if about.state == "connected" else ""


def told(client: Client) -> str:
    return "".join(one.name for one in client.topology())


async def test_a_client_that_lists_one_node_goes_on_at_another_one_and_says_so() -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        async with factory_of(nodes).connect() as client:
            assert (node_of(client), told(client)) == ("a", "abc")
            events: EventStream[ConnectionEvent] = client.events()
            await nodes.crash("a")
            await client.send("q", b"x", duplicate_id="x")
            assert node_of(client) in "bc"
            over = [event async for event in _until_over(events)]
            (failed_over,) = [event for event in over if isinstance(event, FailedOver)]
            assert not failed_over.same_node and failed_over.node_name == node_of(client)


async def _until_over(events: EventStream[ConnectionEvent]) -> Any:
    async for event in events:
        yield event
        if isinstance(event, FailedOver):
            break


async def test_when_all_nodes_have_died_and_come_back_the_client_comes_back() -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        async with factory_of(nodes).connect() as client:
            await nodes.crash("a")
            await until(lambda: node_of(client) in ("b", "c") and told(client) == "bc")
            await nodes.crash("b", "c")
            await until(lambda: not node_of(client))
            await trio.sleep(5)
            await nodes.start("a")
            await until(lambda: node_of(client) == "a")
            await client.send("q", b"x")


@pytest.mark.parametrize("left", ["a", "b", "c"])
async def test_each_node_that_a_client_ever_knew_is_enough_to_come_back_to(left: str) -> None:
    """Nodes go one after another, so that each node but the last one was missing for a while."""
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        async with factory_of(nodes).connect() as client:
            for name, others in (("a", "bc"), ("b", "c")):
                await nodes.crash(name)
                await until(lambda others=others: node_of(client) in tuple(others) and told(client) == others)
            await nodes.crash("c")
            await until(lambda: not node_of(client))
            await nodes.start(left)
            await until(lambda: node_of(client) == left)


async def test_a_new_connection_knows_what_earlier_ones_were_told() -> None:
    async with hosts("ab", cluster=LINKS) as nodes:
        await nodes.joined()
        factory = factory_of(nodes, "a")
        async with factory.connect():
            pass
        await nodes.crash("a")
        async with factory.connect() as client:
            assert node_of(client) == "b"
        with pytest.raises(ConnectionBrokenError):
            async with factory_of(nodes, "a", use_topology=False).connect():
                pass


async def test_a_node_that_may_not_be_dialed_is_said_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "meshq")
    async with hosts("ab", cluster=LINKS) as nodes:
        await nodes.joined()
        env = attrs.evolve(nodes.env, network=nodes.network.host("a"), local={})
        async with ClientFactory("tcp://127.0.0.1:5000", env=env, **FAST).connect() as client:
            assert told(client) == "ab"
    said = {record.message for record in caplog.records if getattr(record, "event", "") == "told_node_not_dialed"}
    assert any("node 'b'" in text and "plaintext" in text for text in said)


async def test_a_client_in_the_process_of_its_broker_stays_with_it() -> None:
    async with hosts("ab", cluster=LINKS) as nodes:
        await nodes.joined()
        factory = ClientFactory("inproc://a", env=nodes.brokers["a"]._env, **FAST, reconnect_attempts=2)
        with pytest.raises(ConnectionBrokenError):
            async with factory.connect() as client:
                assert told(client) == "ab"
                await nodes.brokers["a"].stop()
                await trio.sleep_forever()


@pytest.mark.parametrize("option", ["use_topology=true", "useTopologyForLoadBalancing=false"])
def test_a_link_of_a_node_keeps_to_the_nodes_that_it_names_and_its_url_says_nothing_else(option: str) -> None:
    with pytest.raises(SettingsError, match="a URL without use_topology: a link keeps to the nodes that it names"):
        link_factory_of(f"tcp://127.0.0.1:1?{option}", "target", env=real_env())


async def test_a_bridge_goes_to_no_node_but_those_that_it_was_given() -> None:
    async with hosts("ab", cluster=LINKS) as nodes:
        await nodes.joined()
        env = attrs.evolve(nodes.env, network=nodes.network.host("shop"), local={})
        out = Bridge("out", queue="q", target="tcp://a:5000?insecure=true", reconnect_attempts=float("inf"), **FAST)
        shop = Broker("shop", data_dir=None, queues=["q"], services=[out], env=env)
        async with shop, shop.client() as client:
            await client.send("q", b"1")
            async with nodes.client("a") as there, there.consumer("q") as consumer:
                assert await consumer.receive(timeout=5)
            await nodes.crash("a")
            await client.send("q", b"2")
            await trio.sleep(10)
            about = await client.queue("q")
            assert about.ready + about.delivering == 1
