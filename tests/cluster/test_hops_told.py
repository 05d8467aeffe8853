"""The hops of a message, as the nodes of a cluster tell them, and the nodes that it would go to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from meshq import AddressSettings, Client, Delivery, MessageHop, MessageId, MessageTrace, SettingsError
from meshq.broker.log._hop_log import RUNS_MAX, Hop, HopLog
from meshq.client.admin._message_hops import _Found, in_order
from tests.cluster.kit import until
from tests.cluster.nodes import Nodes, connection, nodes
from tests.cluster.test_cluster_queue import pair
from tests.cluster.test_hops import connections, way

AT_ONCE: Mapping[str, object] = {"address_settings": {"#": AddressSettings(redistribution_delay=0.0)}}


def shown(hops: tuple[MessageHop, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.node_name, one.queues) for one in hops]


async def one(made: Nodes, node: str, queue: str = "q") -> Delivery:
    """The next message of a queue at a node, which is left there."""
    async with made.brokers[node].client() as client, client.consumer(queue) as consumer:
        delivery = await consumer.receive(timeout=5)
        assert delivery is not None
        return delivery


async def traced(client: Client, message_id: MessageId) -> MessageTrace:
    return await client.trace(message_id, everywhere=True)


async def test_a_message_over_a_chain_is_told_node_by_node_wherever_one_asks() -> None:
    made_by = connections(way("abcd", both=True), max_hops=3)
    async with nodes(made_by) as made, made.brokers["d"].client() as there:
        await there.create_queue("q")
        async with there.consumer("q") as consumer, made.brokers["a"].client() as here:
            await made.known("a").wait_for(queue="q", consumers=1)
            await here.send("q", b"x")
            delivery = await consumer.receive(timeout=5)
            assert delivery is not None
            await trio.sleep(1)
            told = [(await traced(client, delivery.message_id)).hops for client in (here, there)]
    assert [shown(hops) for hops in told] == [[("a", ()), ("b", ("q",)), ("c", ("q",)), ("d", ("q",))]] * 2
    first, last = told[0][0], told[0][3]
    assert first.accepted and not first.locations and first.went_to == (told[0][1].node_id,)
    assert last.came_from == (told[0][2].node_id,) and [found.state for found in last.locations] == ["delivering"]


async def test_a_redistributed_message_is_told_from_the_node_where_it_waited() -> None:
    async with nodes(pair(), queues=["q"], a=dict(AT_ONCE)) as made, made.brokers["a"].client() as here:
        await here.send("q", b"x")
        await made.known("a").wait_for(nodes=2, queue="q", queues=2)
        delivery = await one(made, "b")
        hops = (await traced(here, delivery.message_id)).hops
    assert shown(hops) == [("a", ()), ("b", ("q",))]
    assert [found.state for found in hops[1].locations] == ["ready"]


async def test_after_a_drain_the_target_knows_from_where_a_message_came() -> None:
    async with nodes(pair(), queues=["q"]) as made:
        await made.known("a").wait_for(nodes=2, queue="q", queues=2)
        await made.known("b").wait_for(nodes=2, queue="q", queues=2)
        await made.send("a", "q", 1)
        gone = made.known("a").topology()[0].node_id
        async with made.brokers["a"].drain() as progress:
            async for _ in progress:
                pass
        await made.brokers["a"].stop()
        delivery = await one(made, "b")
        async with made.brokers["b"].client() as client:
            hops = (await traced(client, delivery.message_id)).hops
    assert [hop.node_id == gone for hop in hops] == [True, False]
    assert not hops[0].answered and hops[1].queues == ("q",) and hops[1].came_from == (gone,)


async def test_a_message_that_nobody_knows_has_no_hops() -> None:
    async with nodes(pair()) as made, made.brokers["a"].client() as client:
        await made.known("a").wait_for(nodes=2)
        assert (await traced(client, MessageId(bytes(16), 1))).hops == ()
        with pytest.raises(SettingsError, match="everywhere"):
            await client.trace(MessageId(bytes(16), 1), everywhere=1)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="everywhere"):
            await client.explain_route("q", everywhere=1)  # type: ignore[arg-type]


def test_a_node_remembers_its_last_runs_only() -> None:
    log = HopLog()
    for number in range(RUNS_MAX + 1):
        log.add(Hop(bytes(16), 1 + 10 * number, 2, 3, True, "b", 1, (7,), ""))
    assert log.forgotten == 1 and not log.find(MessageId(bytes(16), 1))
    found = [number for number in range(11, 31) if log.find(MessageId(bytes(16), number))]
    assert found == [11, 13, 15, 21, 23, 25]
    assert not log.find(MessageId(bytes(15) + b"x", 11))


def test_nodes_are_told_in_the_order_of_the_message_also_on_a_circle() -> None:
    def answered(node_id: str, to: list[str], *, accepted: bool = False) -> _Found:
        hops = [{"way": "to", "node_id": one, "queues": "q"} for one in to]
        node = {"node_id": node_id, "node_name": node_id, "state": "linked"}
        return _Found(node, {"reached": True, "accepted": accepted}, (), hops)

    found = [answered("c", ["d"]), answered("d", []), answered("b", ["c"]), answered("a", ["b"], accepted=True)]
    assert [one.node_id for one in in_order(found)] == ["a", "b", "c", "d"]
    circle = [answered("b", ["a"]), answered("a", ["b"], accepted=True), answered("c", [])]
    assert [one.node_id for one in in_order(circle)] == ["a", "b"]


async def test_a_route_over_nodes_says_what_each_of_them_would_do() -> None:
    made_by = connections(way("abcd", both=True), max_hops=2)
    async with nodes(made_by) as made, made.brokers["c"].client() as there, made.brokers["b"].client() as between:
        await there.create_queue("q")
        async with there.consumer("q", filter="x = 1"), between.consumer("q", filter="x = 2"):
            await made.known("a").wait_for(queue="q", queues=2, consumers=2)
            await until(lambda: len(made.known("a").topology()) == len("abcd"))
            async with made.brokers["a"].client() as client:
                found = {}
                for x in (1, 2):
                    route = await client.explain_route("q", {"x": x}, everywhere=True)
                    found[x] = {one.node_name: one for one in route.nodes}
                plain = await client.explain_route("q", {"x": 1})
    assert plain.nodes == ()
    assert {name: one.gets for name, one in found[1].items()} == {"b": "no", "c": "yes", "d": "no"}
    assert {name: one.gets for name, one in found[2].items()} == {"b": "yes", "c": "no", "d": "no"}
    assert found[1]["c"].answered and found[1]["c"].there == "1 of 1 consumers take it, in turn"
    assert "it is 2 links away" in found[1]["c"].why and "filters of its consumers" in found[1]["b"].why
    assert found[1]["d"].why == "it is more than max_hops links away"


async def test_a_route_says_of_each_node_why_it_gets_nothing() -> None:
    links = {"a": [connection("a", ["b"], load_balancing="off")], "b": [connection("b", ["a"])]}
    async with (
        nodes(links) as made,
        made.brokers["b"].client() as there,
        there.consumer("q"),
        made.brokers["a"].client() as client,
    ):
        await made.known("a").wait_for(queue="q", consumers=1)
        (off,) = (await client.explain_route("q", everywhere=True)).nodes
        (nothing,) = (await client.explain_route("other", everywhere=True)).nodes
    assert off.gets == "no" and "load balancing of the link is 'off'" in off.why and not off.answered
    assert (nothing.gets, nothing.why) == ("no", "it has no queue on the address")
