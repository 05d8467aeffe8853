"""Nodes whose consumers want some messages only: exactly who gets how many, and that nothing is left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from meshq.message import Message
from tests.cluster.kit import Mesh, bodies, mesh, until

NAMES = "abcd"
#: Divides by every number of consumers, and so do its thirds.
COUNT = 720


def coloured(count: int, *colours: str) -> list[Message]:
    """Messages of these colours in turn; the body says which, too."""
    names = [colours[number % len(colours)] for number in range(count)]
    return [Message(f"{name} {number}".encode(), properties={"colour": name}) for number, name in enumerate(names)]


def colours(found: list[bytes]) -> Counter[str]:
    return Counter(body.decode().split()[0] for body in found)


@asynccontextmanager
async def consumers(nodes: Mesh, wanted: Mapping[str, str | None]) -> AsyncIterator[dict[str, list[bytes]]]:
    """Consumers of ``q`` on these nodes, by their filters, and what each has got."""
    got: dict[str, list[bytes]] = {name: [] for name in wanted}

    async def consume(name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with nodes.client(name) as client, client.consumer("q", filter=wanted[name]) as consumer:
            task_status.started()
            async for delivery in consumer:
                got[name].append(delivery.body)
                await delivery.ack(confirm=True)

    async with trio.open_nursery() as nursery:
        for name in wanted:
            await nursery.start(consume, name)
        await nodes.known("a").wait_for(nodes=len(NAMES), queue="q", consumers=len(wanted), timeout=5)
        yield got
        nursery.cancel_scope.cancel()


async def send(nodes: Mesh, messages: list[Message]) -> None:
    """Send them at ``a`` in runs of several sizes, and wait until no link has anything to do."""
    async with nodes.client("a") as client:
        at = 0
        for size in (1, 2, 255, COUNT):
            if part := messages[at : at + size]:
                await client.send_many("q", part)
            at += size
    await trio.sleep(1)


async def standing(nodes: Mesh) -> dict[str, Counter[str]]:
    """What stands on each node, taken away."""
    found = {name: colours(bodies(await nodes.drain(name))) for name in NAMES}
    return {name: count for name, count in found.items() if count}


@asynccontextmanager
async def four_nodes(mode: str) -> AsyncIterator[Mesh]:
    """Nodes that all have the queue; afterwards nothing of what was done there is left."""
    async with mesh(NAMES, root="simulated", mode=mode) as nodes:
        for name in NAMES:
            async with nodes.client(name) as client:
                await client.create_queue("q")
        await nodes.joined(*NAMES)
        before = nodes.burden()
        yield nodes
        assert await nodes.left() == {}
        await until(lambda: nodes.burden() == before)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["strict", "on_demand", "off"])
@pytest.mark.parametrize("remote", [0, 1, 3])
@pytest.mark.parametrize("local", [0, 1])
async def test_each_mode_deals_what_consumers_want_exactly_and_leaves_nothing(
    mode: str, remote: int, local: int
) -> None:
    async with four_nodes(mode) as nodes:
        wanting = [*"a"[:local], *"bcd"[:remote]]
        async with consumers(nodes, dict.fromkeys(wanting, "colour = 'red'")) as got:
            await send(nodes, coloured(COUNT, "red", "blue", "green"))
            received = {name: colours(found) for name, found in got.items() if found}
        left = await standing(nodes)
    third = COUNT // 3
    everything = Counter(red=third, blue=third, green=third)
    if mode == "strict":
        # A queue gets its share whoever consumes from it, and whatever they want.
        share = Counter(red=third // 4, blue=third // 4, green=third // 4)
        assert received == {name: Counter(red=third // 4) for name in wanting}
        assert left == {name: share - received.get(name, Counter()) for name in NAMES}
    elif mode == "off":
        assert received == ({"a": Counter(red=third)} if local else {})
        assert left == {"a": everything - received.get("a", Counter())}
    else:
        # What somebody wants goes to those who want it, in turn; what nobody wants stays.
        assert received == {name: Counter(red=third // len(wanting)) for name in wanting}
        assert left == {"a": everything - Counter(red=third if wanting else 0)}


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_consumers_who_want_different_messages_are_dealt_each_in_turn_from_any_start(turn: int) -> None:
    wanted = {"b": "colour = 'red'", "c": "colour = 'blue'", "d": None}
    async with four_nodes("on_demand") as nodes:
        async with consumers(nodes, wanted) as got:
            await send(nodes, coloured(turn, "green"))
            for colour in ("red", "blue", "green"):
                await send(nodes, coloured(120, colour))
            received = {name: colours(found) for name, found in got.items()}
        assert await standing(nodes) == {}
    assert received == {
        "b": Counter(red=60),
        "c": Counter(blue=60),
        "d": Counter(red=60, blue=60, green=120 + turn),
    }


async def test_strict_deals_in_turn_whatever_consumers_want() -> None:
    wanted = {"b": "colour = 'red'", "c": "colour = 'blue'", "d": None}
    async with four_nodes("strict") as nodes:
        async with consumers(nodes, wanted) as got:
            await send(nodes, coloured(COUNT, "red", "blue", "green"))
            received = {name: colours(found) for name, found in got.items()}
        left = await standing(nodes)
    share = Counter(red=60, blue=60, green=60)
    assert received == {"b": Counter(red=60), "c": Counter(blue=60), "d": share}
    assert left == {"a": share, "b": share - received["b"], "c": share - received["c"]}
