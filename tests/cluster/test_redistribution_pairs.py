"""Redistribution together with something else: what meets in pairs, and keeps nobody else's messages back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from meshq import AddressSettings, Message
from tests.cluster.chains import connections, numbered, way
from tests.cluster.kit import bodies
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


async def test_a_message_that_was_delivered_keeps_none_of_its_run_from_a_node_behind_the_next() -> None:
    async with chain() as made, made.brokers["a"].client() as client:
        await client.send_many("q", [Message(body, properties={"colour": "green"}) for body in numbered(10)])
        async with client.consumer("q", window=1) as consumer:
            await consumer.nack(*await consumer.receive_many(1))
        # The next node understands counts, and wants nothing of it; of the one behind that nobody knows it.
        async with (
            made.brokers["b"].client() as near,
            near.consumer("q", filter=RED),
            made.brokers["c"].client() as far,
            far.consumer("q", filter=GREEN) as there,
        ):
            assert bodies(await there.receive_many(10, timeout=5)) == numbered(9, 1)
        assert (await made.ready("q"))["a"] == 1


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
