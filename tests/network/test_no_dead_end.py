"""No message goes where it can't come to a consumer any more."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from meshq import Message
from meshq.client import BridgedMessage, Consumer, send_bridged
from meshq.ids import needed_ways
from meshq.wire import PathStep, encode_path
from tests.bridge.kit import numbered
from tests.network.kit import World, consuming, forward, known, quiet, start, take, to, until, world


async def linked(made: World, graph: dict[str, str], **settings: Any) -> None:
    """Start brokers that may be linked in a circle."""
    for name, others in graph.items():
        await made.start(name, lambda others=others: [to(other, **settings) for other in others])  # type: ignore[misc]
    for name, others in graph.items():
        for other in others:
            await made.brokers[name].network(f"to-{other}").wait_for(timeout=60)


async def gathered(consumers: Sequence[Consumer], quiet_rounds: int = 3) -> list[bytes]:
    """Take and acknowledge what comes to these consumers, until nothing came for a while."""
    got: list[bytes] = []
    rounds = 0
    while rounds < quiet_rounds:
        rounds += 1
        for consumer in consumers:
            while batch := await consumer.receive_many(1_000, timeout=0.5):
                got += [one.body for one in batch]
                await consumer.ack(*batch, confirm=True)
                rounds = 0
    return got


async def all_arrive(made: World, graph: Iterable[str], at: str, sender: str, count: int) -> None:
    """Send, and see that each message comes to one of the consumers, once."""
    async with AsyncExitStack() as stack:
        consumers = [(await stack.enter_async_context(consuming(made, name)))[1] for name in at]
        await quiet(3)
        await made.send(sender, "q", numbered(count))
        got = await gathered(consumers)
        left = {name: await made.count(name, "q") for name in graph}
        assert sorted(got) == sorted(numbered(count)), f"{count - len(got)} are left: {left}"


@pytest.mark.parametrize(
    "settings",
    [{}, {"suppress_duplicate_queue_subscriptions": True}, {"decrease_network_consumer_priority": True}],
)
async def test_a_triangle_beside_the_way_to_the_consumer_keeps_nothing(settings: dict[str, Any]) -> None:
    graph = {"p": "sxd", "s": "pxd", "x": "ps", "d": "ps"}
    async with world() as made:
        await linked(made, graph, network_ttl=3, **settings)
        await all_arrive(made, graph, "d", "p", 60)


async def test_in_a_triangle_with_consumers_at_two_brokers_nothing_is_left_at_the_third() -> None:
    graph = {"z": "ab", "a": "zb", "b": "za"}
    async with world() as made:
        await linked(made, graph, network_ttl=2)
        await all_arrive(made, graph, "za", "z", 60)


async def test_what_can_not_go_on_is_for_the_consumer_where_it_is() -> None:
    graph = {"d": "", "c": "d", "b": "c", "z": "b"}
    async with world() as made:
        await linked(made, graph, network_ttl=2)
        await all_arrive(made, graph, "bd", "z", 20)


@pytest.mark.parametrize("seed", range(16))
async def test_on_any_graph_with_consumers_at_two_brokers_everything_arrives(seed: int) -> None:
    chance = random.Random(seed)
    names = "vwxyz"[: chance.randint(3, 4)]
    pairs = [one + other for one in names for other in names if one != other]
    links = [*(names[at] + names[at + 1] for at in range(len(names) - 1)), *chance.sample(pairs, 4)]
    graph = {name: "".join(dict.fromkeys(link[1] for link in links if link[0] == name)) for name in names}
    settings = {"network_ttl": chance.randint(len(names) - 1, 4), "conduit_subscriptions": chance.random() < 0.7}
    async with world() as made:
        await linked(made, graph, **settings)
        # The last one is reached from each of them.
        await all_arrive(made, graph, names[-1] + chance.choice(names[:-1]), names[0], 30)


def test_a_way_over_all_brokers_of_a_shorter_one_makes_no_difference() -> None:
    assert needed_ways(["edcb", "cb", "dcb", "db", "acb"]) == [("c", "b"), ("d", "b")]
    assert needed_ways(["cb", "b"]) == [("b",)]


async def test_the_filter_of_an_open_network_consumer_follows_its_ways() -> None:
    """A consumer moves further away: then what has come too far already does not go on."""
    async with world() as made:
        await start(made, {"d": "", "c": "d", "b": "c", "a": "b"}, network_ttl=2)
        async with consuming(made, "d"):
            async with consuming(made, "c"):
                await until(lambda: len(made.brokers["b"].network("to-c").subscriptions()) == 2)
                await known(made, "ab", "q", 1)
            await until(lambda: [len(one.ways[0]) for one in made.brokers["b"].network("to-c").subscriptions()] == [2])
            await quiet(1)
            (open_one,) = forward(made, "bc").open
            assert len(open_one.routes) == 1
            # It is sent as from a broker before this one, and would be stuck at the next one.
            path = encode_path([PathStep("f" * 32, "z")])
            async with made.here("b") as client:
                await send_bridged(client, "q", [BridgedMessage(Message(b"far"), b"", path)])
                await client.send("q", b"near")
            await quiet(2)
            assert [await made.count(name, "q") for name in "bcd"] == [1, 0, 1]
        async with consuming(made, "c") as (_, there):
            await take(there, 1)
