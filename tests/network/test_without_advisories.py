"""A broker without advisories tells no demand; what is static goes through it all the same."""

from __future__ import annotations

from meshq import Queues
from tests.bridge.kit import numbered
from tests.network.kit import connectors, consuming, known, take, world


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
