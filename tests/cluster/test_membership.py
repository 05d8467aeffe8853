"""Who is in a cluster: nodes that have a cluster connection, none, or several of them."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from meshq import ClusterConnection
from tests.cluster.kit import mesh, until
from tests.cluster.nodes import connection, nodes


async def test_a_node_keeps_its_messages_and_serves_its_clients_whether_or_not_the_others_run() -> None:
    async with mesh("ab") as both:
        for name in "ab":
            await both.send(name, [name.encode()] * 5, f"own-{name}")
        await both.joined()
        await both.stop("b")
        assert await both.left("a") == {"a/own-a": 5}
        await both.send("a", [b"more"], "own-a")
        assert len(await both.drain("a", "own-a")) == 6


async def test_a_node_without_a_cluster_connection_is_in_no_cluster() -> None:
    cluster = {"a": [connection("a", ["b"])], "b": [connection("b", ["a"])], "c": []}
    async with nodes(cluster, ["q"]) as made:
        for name in "ab":
            await made.known(name).wait_for(nodes=2, timeout=5)
        await trio.sleep(5)
        assert made.links() == [("a", "b"), ("b", "a")]
        async with made.brokers["c"].client() as client, client.consumer("q"):
            await trio.sleep(1)
            await made.send("a", "q", 10)
            assert await made.ready("q") == {"a": 10, "b": 0, "c": 0}


async def test_management_lists_the_links_of_a_cluster_as_bridges_that_nobody_has_defined() -> None:
    async with mesh("abc") as three:
        await three.joined()
        async with three.client("a") as client:
            found = await client.bridges()
            assert [(one.name, one.state, one.target, one.carried) for one in found] == [
                ("mesh to b", "carrying", "inproc://b", 0),
                ("mesh to c", "carrying", "inproc://c", 0),
            ]
            assert found[0].queue == three.forward("b")
        async with three.client("b") as client, client.consumer("q"):
            await three.known("a").wait_for(queue="q", consumers=1, timeout=5)
            await three.send("a", [b"x"] * 3)
            await trio.sleep(1)
        await three.stop("c")
        async with three.client("a") as client:
            states = {one.name: (one.state, one.carried) for one in await client.bridges()}
            assert states == {"mesh to b": ("carrying", 3), "mesh to c": ("connecting", 0)}


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_broker_has_as_many_cluster_connections_as_it_is_given_and_with_none_it_stands_alone(
    count: int,
) -> None:
    names = [f"c{number}" for number in range(count)]
    cluster = {node: [connection(node, [other], name, address=name) for name in names] for node, other in ("ab", "ba")}
    async with nodes(cluster, ["alone", *names]) as made:
        for name in names:
            await made.known("a", name).wait_for(nodes=2, queue=name, queues=2, timeout=5)
        assert made.links() == [("a", "b")] * count + [("b", "a")] * count
        async with made.brokers["b"].client() as client:
            for queue in ("alone", *names):
                async with client.consumer(queue):
                    await trio.sleep(0.5)
                    await made.send("a", queue, 4)
                    await trio.sleep(0.5)
        assert await made.ready("alone") == {"a": 4, "b": 0}
        for name in names:
            assert await made.ready(name) == {"a": 0, "b": 4}


async def test_a_broker_is_in_one_cluster_by_some_addresses_and_in_another_one_by_others() -> None:
    cluster = {
        "eu": [connection("eu", ["both"], "one", address="eu.")],
        "both": [
            connection("both", ["eu"], "one", address="eu."),
            connection("both", ["us"], "two", address="us."),
        ],
        "us": [connection("us", ["both"], "two", address="us.")],
    }
    queues = ["eu.orders", "us.orders"]
    async with nodes(cluster, queues) as made:
        for name, of in (("eu", "one"), ("both", "one"), ("both", "two"), ("us", "two")):
            await made.known(name, of).wait_for(nodes=2, timeout=5)
        async with AsyncExitStack() as stack:
            for name in ("eu", "us"):
                client = await stack.enter_async_context(made.brokers[name].client())
                for queue in queues:
                    await stack.enter_async_context(client.consumer(queue))
            await trio.sleep(1)
            for queue in queues:
                await made.send("both", queue, 10)
            await trio.sleep(1)
        assert await made.ready("eu.orders") == {"eu": 10, "both": 0, "us": 0}
        assert await made.ready("us.orders") == {"eu": 0, "both": 0, "us": 10}


async def test_the_explicit_example_is_strict_to_its_one_neighbour_and_for_its_addresses_only() -> None:
    example: dict[str, Any] = {
        "retry_interval": 0.5,
        "use_duplicate_detection": True,
        "load_balancing": "strict",
        "max_hops": 1,
        "allow_direct_connections_only": True,
        "address": "jms",
    }
    cluster = {
        "server0-connector": [connection("server0-connector", ["server1-connector"], "my-cluster", **example)],
        "server1-connector": [connection("server1-connector", ["server2-connector"], "my-cluster", **example)],
        "server2-connector": [connection("server2-connector", [], "my-cluster", **example)],
    }
    async with nodes(cluster, ["jms.q", "q"]) as made:
        known = made.known("server0-connector", "my-cluster")
        assert {name: getattr(known.settings, name) for name in example} == example
        await known.wait_for(nodes=2, queue="jms.q", queues=2, timeout=5)
        await trio.sleep(5)
        assert made.links() == [
            ("server0-connector", "server1-connector"),
            ("server1-connector", "server2-connector"),
        ]
        for queue in ("jms.q", "q"):
            await made.send("server0-connector", queue, 10)
        await trio.sleep(1)
        assert list((await made.ready("jms.q")).values()) == [5, 5, 0]
        assert list((await made.ready("q")).values()) == [10, 0, 0]


async def test_addresses_that_overlap_are_warned_of_and_both_connections_deal_a_message_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def both(node: str, other: str) -> list[ClusterConnection]:
        return [
            connection(node, [other], "one", address="europe"),
            connection(node, [other], "two", address="europe.news"),
        ]

    cluster = {"a": both("a", "b"), "b": both("b", "a")}
    with caplog.at_level(logging.WARNING):
        async with nodes(cluster) as made, made.brokers["b"].client() as client:
            await client.create_address("europe.news", routing="multicast")
            await client.create_queue("readers", address="europe.news", routing="multicast")
            for name in ("one", "two"):
                await made.known("a", name).wait_for(nodes=2, address="europe.news", queues=1, timeout=5)
            async with client.consumer("europe.news::readers"):
                for name in ("one", "two"):
                    await made.known("a", name).wait_for(address="europe.news", consumers=1, timeout=5)
                await made.send("a", "europe.news", 4)
                await trio.sleep(1)
                assert (await client.queue("europe.news::readers")).delivering == 4
            carried = [made.brokers["a"].cluster(name).bridges()[0].carried for name in ("one", "two")]
    overlaps = [one for one in caplog.records if getattr(one, "event", "") == "cluster_addresses_overlap"]
    assert len(overlaps) == 2 and "'europe.news'" in overlaps[0].getMessage()
    assert sum(carried) == 4, carried


async def test_without_a_cluster_connection_eight_messages_for_a_queue_of_four_nodes_stay_on_theirs() -> None:
    async with nodes({name: [] for name in "abcd"}, ["OrderQueue"]) as made:
        got: dict[str, int] = {}
        await made.send("a", "OrderQueue", 8)
        for name in "abcd":
            got[name] = len(await made.received(name, "OrderQueue"))
        assert got == {"a": 8, "b": 0, "c": 0, "d": 0}


async def test_four_nodes_of_a_symmetric_cluster_have_twelve_links_and_know_all_queues() -> None:
    cluster = {node: [connection(node, [one for one in "abcd" if one != node])] for node in "abcd"}
    own = {node: {"queues": [f"only-{node}", "q"]} for node in "abcd"}
    async with nodes(cluster, **own) as made:
        for node in "abcd":
            await made.known(node).wait_for(nodes=4, queue="q", queues=4, timeout=5)
        await until(lambda: len(made.links()) == 12)
        assert made.links() == [(one, other) for one in "abcd" for other in "abcd" if one != other]
        for node in "abcd":
            found = made.known(node).bindings()
            known = sorted((one.node_name, one.queue, one.distance) for one in found)
            wanted = [(other, queue, 1) for other in "abcd" if other != node for queue in (f"only-{other}", "q")]
            assert known == wanted


async def test_a_node_knows_the_queues_of_the_others_and_their_consumers_soon_after_a_change() -> None:
    async with mesh("abc") as three:
        await three.joined()
        async with three.client("b") as client:
            await client.create_queue("q")
            known = three.known("a")
            await known.wait_for(queue="q", queues=1, consumers=0, exactly=True, timeout=1)
            async with client.consumer("q"), client.consumer("q", filter="colour = 'red'"):
                await known.wait_for(queue="q", consumers=2, exactly=True, timeout=1)
                async with three.client("c") as third, third.consumer("q", filter="size > 3"):
                    await known.wait_for(queue="q", queues=2, consumers=3, exactly=True, timeout=1)
                    shown = {(one.node_name, one.queue, one.consumers, one.filters) for one in known.bindings("q")}
                    assert shown == {("b", "q", 2, ()), ("c", "q", 1, ("size > 3",))}
                await known.wait_for(queue="q", consumers=2, exactly=True, timeout=1)
            await known.wait_for(queue="q", consumers=0, exactly=True, timeout=1)
            await client.delete_queue("q")
            await known.wait_for(queue="q", queues=1, exactly=True, timeout=1)


@pytest.mark.slow
async def test_a_copy_of_a_node_s_data_is_refused_by_all_members_and_with_its_settings_alone_a_node_joins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with mesh("abcd", root="simulated") as five:
            await five.joined()
            await five.stop("a")
            copied = five.disks["a"].copy()
            await five.start("a")
            await five.joined()
            for name in ("e", "f"):
                five.urls[name] = f"inproc://{name}"
            # The copy knows the store under the name of the one that it was made of.
            five.disks["e"] = copied
            five.own["e"] = {"data_dir": "/data/a"}
            for name in ("e", "f"):
                five.others[name] = list("abcd")
            await five.start("e")
            await trio.sleep(5)
            assert five.brokers["e"].node_id == five.brokers["a"].node_id
            assert [peer.connected for peer in five.known("e").peers()] == [False] * 4
            refused = [one for one in caplog.records if getattr(one, "event", "") == "duplicate_node"]
            assert refused
            for name in "abcd":
                assert five.known(name).nodes() == 4
            await five.start("f")
            await five.known("f").wait_for(nodes=5, timeout=5)
