"""A node whose store was begun anew under the same id gives its numbers again, to others of its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Message
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until
from tests.cluster.test_lost_nodes import FAST, numbered

#: What b has in its first life, and in later ones, in the order of their numbers.
QUEUES = ("one", "two", "three", "four")
ANEW = ("another", "three", "two", "one")
OWN: dict[str, Any] = {"node_id": b"the same node id"}


async def make(nodes: Hosts, queues: Sequence[str], routing: str) -> None:
    """Queues of one anycast address, or of a topic each."""
    async with nodes.client("b") as client:
        for name in queues:
            await client.create_queue(name, address=address_of(name, routing), routing=routing)


def address_of(name: str, routing: str) -> str:
    return "work" if routing == "anycast" else f"news of {name.replace('another', 'four')}"


async def begin_anew(nodes: Hosts, routing: str) -> None:
    """Another life of b with nothing of the last one, which has its queues before anybody links to it."""
    nodes.disks.pop("b", None)
    nodes.network.partition(["a"], ["b"])
    await nodes.start("b")
    await make(nodes, ANEW, routing)


async def meet(nodes: Hosts) -> None:
    nodes.network.heal()
    await until(lambda: nodes.known("a").nodes() == 2)


def waiting(nodes: Hosts) -> int:
    return sum(peer.waiting for peer in nodes.known("a").peers())


async def send(nodes: Hosts, routing: str, first: int) -> None:
    """Five messages for each of the queues that b has first, beginning there."""
    for at, name in enumerate(QUEUES):
        address = address_of(name, routing)
        target = f"{address}::{name}" if routing == "anycast" else address
        await nodes.send("a", numbered(5, 10 * at + first), target)


async def drained(nodes: Hosts) -> dict[str, list[bytes]]:
    """What is in all queues of b, by their names."""
    async with nodes.client("b") as client:
        names = [name for name in await client.queues() if not name.startswith("$")]
    return {name: bodies(await nodes.drain("b", name)) for name in names}


@pytest.mark.parametrize("kept", ["memory", "disk"])
@pytest.mark.parametrize("routing", ["anycast", "multicast"])
@pytest.mark.parametrize("restarts", ["never", "before", "after"])
async def test_what_waits_for_a_store_begun_anew_goes_to_the_queues_of_the_same_names(
    kept: str, routing: str, restarts: str
) -> None:
    here = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    there = {**OWN, "data_dir": None} if kept == "memory" else OWN
    async with hosts(mode="strict", cluster=FAST, own={"a": here, "b": there}) as nodes:
        await make(nodes, QUEUES, routing)
        await nodes.joined()
        await trio.sleep(0.2)
        nodes.network.partition(["a"], ["b"])
        # These are on their way when the node dies.
        await send(nodes, routing, 0)
        await nodes.crash("b")
        await send(nodes, routing, 5)
        assert waiting(nodes) == 40
        if restarts == "before":
            await nodes.crash("a")
        await begin_anew(nodes, routing)
        if restarts == "before":
            await nodes.start("a")
        if restarts == "after":
            # As soon as it has learned of the new store.
            await meet(nodes)
            await nodes.crash("a")
            await nodes.start("a")
        await meet(nodes)
        await until(lambda: waiting(nodes) == 0)
        found = await drained(nodes)
        # On an anycast address any other queue does; of a topic it was for a queue that is no more.
        elsewhere = {*numbered(10, 30)} if routing == "anycast" else set()
        assert {body for got in found.values() for body in got} == {*numbered(30), *elsewhere}
        own = {name: [body for body in got if body not in elsewhere] for name, got in found.items()}
        assert own == {"one": numbered(10), "two": numbered(10, 10), "three": numbered(10, 20), "another": []}


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_was_for_a_topic_that_a_store_begun_anew_does_not_know_makes_no_queue_there(restarts: bool) -> None:
    async with hosts(mode="strict", cluster=FAST, own={"b": OWN}) as nodes:
        await make(nodes, QUEUES, "multicast")
        await nodes.joined()
        await trio.sleep(0.2)
        await nodes.crash("b")
        await send(nodes, "multicast", 0)
        assert waiting(nodes) == 20
        if restarts:
            await nodes.crash("a")
            await nodes.start("a")
        nodes.disks.pop("b")
        await nodes.start("b")
        await until(lambda: waiting(nodes) == 0)
        # Whoever subscribes from now on has a topic.
        assert await drained(nodes) == {}
        await make(nodes, QUEUES, "multicast")
        await trio.sleep(0.2)
        await send(nodes, "multicast", 5)
        assert {name: len(got) for name, got in (await drained(nodes)).items()} == dict.fromkeys(QUEUES, 5)


@pytest.mark.parametrize("others", [False, True])
async def test_what_a_queue_of_the_same_name_takes_no_more_goes_to_another_or_is_a_dead_letter(others: bool) -> None:
    here = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    there = {**OWN, "address_settings": {"work": AddressSettings(dead_letter_address="letters")}}
    async with hosts(cluster=FAST, own={"a": here, "b": there}) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("one", address="work")
        await nodes.joined()
        await trio.sleep(0.2)
        nodes.network.partition(["a"], ["b"])
        await nodes.crash("b")
        async with nodes.client("a") as client:
            colours = ("green", "red")
            coloured = [Message(body, properties={"colour": colours[at % 2]}) for at, body in enumerate(numbered(10))]
            await client.send_many("work", coloured)
        assert waiting(nodes) == 10
        nodes.disks.pop("b")
        await nodes.start("b")
        async with nodes.client("b") as client:
            await client.create_queue("letters")
            await client.create_queue("one", address="work", filter="colour = 'green'")
            if others:
                await client.create_queue("two", address="work", filter="colour = 'red'")
        await meet(nodes)
        await until(lambda: waiting(nodes) == 0)
        rest = {"two": numbered(10)[1::2], "letters": []} if others else {"letters": numbered(10)[1::2]}
        assert await drained(nodes) == {"one": numbered(10)[::2], **rest}
