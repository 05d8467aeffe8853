"""Networks of several shapes, and how far messages come in them."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest

from meshq import Bridge, Message
from tests.bridge.kit import URL, World, numbered
from tests.network.kit import connectors, consuming, known, quiet, start, take, to, world


async def counts(made: World, names: str, queue: str = "q") -> list[int]:
    """Messages in a queue of each of these brokers."""
    return [await made.count(name, queue) for name in names]


async def test_in_a_concentrator_each_consumer_of_the_second_layer_sees_all_producers_of_the_first() -> None:
    async with world() as made:
        await start(made, {"x": "", "y": "", "a": "xy", "b": "xy", "c": "xy"})
        links = [made.brokers[name].network(f"to-{other}") for name in "abc" for other in "xy"]
        assert [link.bridges()[0].state for link in links] == ["linked"] * 6
        async with consuming(made, "x") as (_, at_x), consuming(made, "y") as (_, at_y):
            for name in "abc":
                await known(made, f"{name}x", "q", 1)
                await known(made, f"{name}y", "q", 1)
            for name in "abc":
                await made.send(name, "q", numbered(30))
            for got in (await take(at_x, 45), await take(at_y, 45)):
                assert {one.path for one in got} == {("a",), ("b",), ("c",)}
        assert await counts(made, "abcxy") == [0] * 5
        # A consumer at the first layer gets what was sent there, and nothing else.
        async with consuming(made, "a", "own") as (_, misplaced):
            for name in "abc":
                await made.send(name, "own", numbered(3))
            assert {one.path for one in await take(misplaced, 3)} == {()}


async def test_a_hub_without_connectors_joins_spokes_without_ports() -> None:
    async with world() as made:
        await made.start("hub")

        async def attach(spoke: str) -> None:
            await made.start(spoke, lambda: [to("hub", duplex=True, network_ttl=2)], acceptors=[])
            await made.brokers[spoke].network("to-hub").wait_for(timeout=60)

        for spoke in "abcde":
            await attach(spoke)
        for spoke, other in ("ab", "bc", "cd", "de", "ea"):
            async with consuming(made, other) as (_, there):
                await made.brokers[spoke].network("to-hub").wait_for(queue="q", consumers=1, timeout=60)
                await made.send(spoke, "q", numbered(3))
                assert {one.path for one in await take(there, 3, quiet=2)} == {(spoke, "hub")}
            await made.brokers[spoke].network("to-hub").wait_for(queue="q", timeout=60)
        # Another spoke comes while the others run, and nothing is said to the hub.
        await attach("f")
        async with consuming(made, "f", "late") as (_, there):
            await made.brokers["a"].network("to-hub").wait_for(queue="late", consumers=1, timeout=60)
            await made.send("a", "late", numbered(3))
            assert {one.path for one in await take(there, 3, quiet=2)} == {("a", "hub")}
        assert made.brokers["hub"].statistics().connections == 6


@pytest.mark.parametrize(("ttl", "arrive"), [(3, 6), (2, 0)])
async def test_a_tree_has_one_way_and_needs_a_ttl_of_its_length(ttl: int, arrive: int) -> None:
    def up(other: str) -> object:
        return lambda: [to(other, duplex=True, network_ttl=ttl)]

    async with world() as made:
        await made.start("r")
        for name, other in (("a", "r"), ("b", "r"), ("a1", "a"), ("a2", "a")):
            await made.start(name, up(other))  # type: ignore[arg-type]
            await made.brokers[name].network(f"to-{other}").wait_for(timeout=60)
        async with consuming(made, "b") as (_, there):
            await quiet(2)
            await made.send("a1", "q", numbered(6))
            assert {one.path for one in await take(there, arrive, quiet=2)} == ({("a1", "a", "r")} if arrive else set())
        assert await made.count("a1", "q") == 6 - arrive


@pytest.mark.parametrize(("ttl", "arrive"), [(1, 0), (2, 6)])
async def test_a_broker_at_the_edge_of_a_mesh_is_reached_with_a_larger_ttl_only(ttl: int, arrive: int) -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "c", "a": "bc"}, duplex=True, network_ttl=ttl)
        await start(made, {"d": "c"}, duplex=True, network_ttl=ttl)
        async with consuming(made, "d") as (_, there):
            await quiet(2)
            await made.send("a", "q", numbered(6))
            assert {one.path for one in await take(there, arrive, quiet=2)} == ({("a", "c")} if arrive else set())
        assert await made.count("a", "q") == 6 - arrive


async def test_a_connector_at_each_end_makes_both_ways() -> None:
    async with world() as made:
        await made.start("b", connectors(("a", {"name": "linkToBrokerA", "network_ttl": 3})))
        await made.start("a", connectors(("b", {"name": "linkToBrokerB", "network_ttl": 3})))
        for here, there, link in (("a", "b", "linkToBrokerB"), ("b", "a", "linkToBrokerA")):
            async with consuming(made, there, f"at-{there}") as (_, consumer):
                await made.brokers[here].network(link).wait_for(queue=f"at-{there}", consumers=1, timeout=60)
                await made.send(here, f"at-{there}", numbered(10))
                assert {one.path for one in await take(consumer, 10)} == {(here,)}


async def test_without_entries_every_destination_passes() -> None:
    names = ("q", "TRADE.STOCK.NYSE.IBM", "a b", "x.y.z", "ümlaut")
    async with world() as made, AsyncExitStack() as stack:
        await start(made, {"b": "", "a": "b"})
        client = await stack.enter_async_context(made.here("b"))
        for name in names:
            consumer = await stack.enter_async_context(client.consumer(name))
            await known(made, "ab", name, 1)
            await made.send("a", name, [b"x"])
            await take(consumer, 1, quiet=1)


async def regions_taken(messages: list[str], *, conduit: bool = True) -> tuple[int, int]:
    """Send messages with these regions; return what consumers for one region each at two brokers take."""
    async with world() as made:
        await start(made, {"c": "", "b": "", "a": "bc"}, conduit_subscriptions=conduit)
        async with (
            consuming(made, "b", filter="region = 'us'") as (_, us),
            consuming(made, "c", filter="region = 'emea'") as (_, emea),
        ):
            await known(made, "ab", "q", 1)
            await known(made, "ac", "q", 1)
            await made.send("a", "q", [Message(b"", properties={"region": region}) for region in messages])
            return len(await us.receive_many(100, timeout=3)), len(await emea.receive_many(100, timeout=3))


async def test_with_conduit_it_is_luck_what_comes_to_the_consumer_that_wants_it() -> None:
    taken = [sum(await regions_taken(list(order) * 10)) for order in (("us", "emea"), ("emea", "us"))]
    assert sorted(taken) == [0, 20]
    mixed = ["us", "emea"] * 10
    random.Random(1).shuffle(mixed)
    assert 0 < sum(await regions_taken(mixed)) < 20


async def test_without_conduit_all_of_a_region_comes_to_its_consumer() -> None:
    assert await regions_taken(["us"] * 10, conduit=False) == (10, 0)
    assert await regions_taken(["emea"] * 10, conduit=False) == (0, 10)


async def test_twelve_messages_to_three_consumers_are_four_each() -> None:
    async with world() as made, AsyncExitStack() as stack:
        await made.start("a")
        three = [(await stack.enter_async_context(consuming(made, "a")))[1] for _ in range(3)]
        await made.send("a", "q", numbered(12))
        got = [await take(one, 4, quiet=1) for one in three]
        assert len({one.body for each in got for one in each}) == 12


async def test_connectors_and_bridges_are_listed_by_their_names_with_state_and_counters() -> None:
    async with world() as made:
        await made.start("b")
        bridge = Bridge("east", queue="e", target=URL.format("b"))
        await made.start("a", lambda: [to("b", name="north"), to("b", name="south"), bridge])
        async with consuming(made, "b") as (_, there), made.dial("a") as client, made.here("a") as here:
            await here.create_queue("e")
            for name in ("north", "south"):
                await made.brokers["a"].network(name).wait_for(queue="q", consumers=1, timeout=60)
            await made.send("a", "q", numbered(10))
            await take(there, 10)
            found = await client.bridges()
            assert [one.name for one in found] == ["east", "north", "south"]
            assert [(one.state, one.carried) for one in found[1:]] == [("linked", 5), ("linked", 5)]
