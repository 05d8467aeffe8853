"""Redistribution together with something else: what meets in pairs, and keeps nobody else's messages back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Message
from tests.cluster.chains import connections, numbered, way
from tests.cluster.kit import Mesh, bodies, mesh
from tests.cluster.nodes import Nodes, nodes

GREEN, RED = "colour = 'green'", "colour = 'red'"


@asynccontextmanager
async def chain(names: str = "abc", **settings: Any) -> AsyncIterator[Nodes]:
    """Nodes in a row that are linked both ways, each with the queue ``q``, whose messages move at once."""
    own = {"address_settings": {"q": AddressSettings(**{"redistribution_delay": 0.0, **settings})}}
    links = connections(way(names, both=True), max_hops=len(names) - 1)
    async with nodes(links, ["q"], **dict.fromkeys(names, own)) as made:
        for name in names:
            await made.known(name).wait_for(nodes=len(names), queue="q", queues=len(names), timeout=10)
        yield made


async def _delivered(nodes: Mesh, colour: str = "green") -> None:
    """Have ten messages of one run on a, of which the first was delivered and one more has an origin."""
    async with nodes.client("a") as client:
        await client.send_many("q", [Message(body, properties={"colour": colour}) for body in numbered(10)])
        async with client.consumer("q", window=1) as consumer:
            await consumer.nack(*await consumer.receive_many(1))
        await client.create_queue("elsewhere")
        await client.send("elsewhere", Message(b"moved before", properties={"colour": colour}))
        await client.move_messages("elsewhere", "q")


@asynccontextmanager
async def lasting_chain(names: str = "abc") -> AsyncIterator[Mesh]:
    """The same, of nodes that can be stopped and started again."""
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=0.0)}}
    hops = {"max_hops": len(names) - 1, "allow_direct_connections_only": True}
    async with mesh(names, root="simulated", broker=settings, others=way(names, both=True), cluster=hops) as made:
        await made.joined(queue="q", queues=len(names))
        yield made


@pytest.mark.parametrize("names", ["abc", "abcd"])
async def test_what_was_delivered_goes_with_its_count_and_origin_to_nodes_behind_others(names: str) -> None:
    async with lasting_chain(names) as nodes:
        await _delivered(nodes)
        async with nodes.client(names[-1]) as far, far.consumer("q") as there:
            found = await there.receive_many(11, timeout=5)
            while len(found) < 11:
                found += await there.receive_many(11, timeout=5)
            assert bodies(found) == [*numbered(10), b"moved before"]
            assert [one.delivery_count for one in found] == [2, *[1] * 10]
            assert [one.origin.queue if one.origin else "" for one in found] == [*[""] * 10, "elsewhere"]
            await there.ack(*found, confirm=True)
        assert await nodes.left() == {}


@pytest.mark.parametrize("older", ["b", "c"])
async def test_a_message_that_not_all_nodes_on_the_way_understand_stays_and_keeps_none_of_its_run(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = "meshq.broker.session._peering.LINK_FEATURES"
    async with lasting_chain() as nodes:
        await nodes.stop(older)
        with monkeypatch.context() as patched:
            patched.setattr(features, "due queue ids hops")
            await nodes.start(older)
            await nodes.joined(queue="q", queues=3)
        await _delivered(nodes)
        # The next node wants nothing of it, and may understand all of it.
        async with (
            nodes.client("b") as near,
            near.consumer("q", filter=RED),
            nodes.client("c") as far,
            far.consumer("q", filter=GREEN) as there,
        ):
            assert bodies(await there.receive_many(10, timeout=5)) == numbered(9, 1)
        assert (await nodes.left("a")) == {"a/q": 2}


async def test_last_values_are_each_nodes_own_so_what_moves_replaces_a_newer_one() -> None:
    async with (
        chain("ab", default_last_value_key="share") as made,
        made.brokers["a"].client() as there,
        made.brokers["b"].client() as here,
    ):
        await here.send("q", Message(b"older", properties={"share": "ACME"}))
        await there.send("q", Message(b"newer", properties={"share": "ACME"}))
        await there.send("q", Message(b"another", properties={"share": "EMCA"}))
        await there.pause_queue("q")
        async with there.consumer("q") as consumer:
            await trio.sleep(1)
            assert await made.ready("q") == {"a": 2, "b": 0}
            await there.resume_queue("q")
            assert bodies(await consumer.receive_many(3, timeout=5)) == [b"another", b"older"]
