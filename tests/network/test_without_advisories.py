"""A broker without advisories tells no demand; what is static goes through it all the same."""

from __future__ import annotations

import trio

from meshq import Queues
from tests.bridge.kit import numbered
from tests.network.kit import connectors, consuming, known, subscribed, take, world
from tests.network.test_ids_of_topics import clustered


async def test_a_broker_without_advisories_passes_no_demand_on_and_static_destinations_all_the_same() -> None:
    async with world() as made:
        static = {"network_ttl": 3, "statically_included": [Queues("fixed")]}
        await made.start("c")
        await made.start("b", connectors(("c", static)), advisory_support=False)
        await made.start("a", connectors(("b", static)))
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
        async with (
            consuming(made, "b") as (_, near),
            consuming(made, "c") as (_, far),
            consuming(made, "c", "fixed") as (_, fixed),
        ):
            # The broker hears what is wanted elsewhere, and serves its own clients by that.
            await known(made, "bc", "q", 1)
            await made.send("a", "q", numbered(4))
            await made.send("a", "fixed", numbered(4))
            await take(fixed, 4)
            await take(near, 0)
            await take(far, 0)
            assert made.brokers["a"].network("to-b").subscriptions() == ()
            assert await made.count("a", "q") == 4
            await made.send("b", "q", numbered(2, 10))
            await take(far, 1)
            await take(near, 1)


async def test_a_node_drains_to_one_without_advisories_though_it_has_a_durable_subscription_of_them() -> None:
    async with world() as made:
        await made.start("x", lambda: clustered("y"))
        await made.start("y", lambda: clustered("x"), advisory_support=False)
        async with subscribed(made, "x", topic="ActiveMQ.Advisory.Connection", name="s", durable=True):
            pass
        for name in "xy":
            await made.brokers[name].cluster("mesh").wait_for(nodes=2, timeout=30)
        async with made.here("x") as client:
            await client.create_queue("q")
            await client.send_many("q", numbered(5))
        with trio.fail_after(60):
            async with made.brokers["x"].drain():
                pass
        assert await made.count("y", "q") == 5
