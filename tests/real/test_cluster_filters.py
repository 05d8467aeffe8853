"""Two nodes, and consumers that want some messages only: those alone cross the link."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshq import Broker, ClusterConnection, Consumer
from meshq.message import Message


def free_url() -> str:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Broker, Broker]]:
    """Two nodes that know each other."""
    urls = {"a": free_url(), "b": free_url()}

    def node(name: str, other: str) -> Broker:
        mesh = ClusterConnection("mesh", connector=name, static_connectors=[other], user="mesh", password="for tests")
        return Broker(name, data_dir=None, acceptors=[urls[name]], connectors=urls, services=[mesh])

    async with node("a", "b") as a, node("b", "a") as b:
        for broker in (a, b):
            await broker.cluster("mesh").wait_for(nodes=2, timeout=10)
        yield a, b


async def bodies(consumer: Consumer, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        batch = await consumer.receive_many(count - len(found), timeout=10)
        assert batch, f"{count} were expected, {found} came"
        await consumer.ack(*batch)
        found += [delivery.body for delivery in batch]
    return found


COLOURS = [Message(b"%d" % number, properties={"colour": ("red", "blue")[number % 2]}) for number in range(10)]
RED, BLUE = ([message.body for message in COLOURS[start::2]] for start in (0, 1))


async def test_what_a_consumer_elsewhere_wants_goes_there_and_the_rest_stays() -> None:
    async with pair() as (a, b), a.client() as here, b.client() as there:
        async with there.consumer("q", filter="colour = 'red'") as red:
            await a.cluster("mesh").wait_for(queue="q", consumers=1, timeout=10)
            await here.send_many("q", COLOURS)
            assert await bodies(red, 5) == RED
            assert (await there.queue("q")).added == 5
        async with here.consumer("q") as rest:
            assert await bodies(rest, 5) == BLUE
        for client in (here, there):
            assert {(await client.queue(name)).ready for name in await client.queues()} == {0}


async def test_consumers_with_and_without_filters_share_what_both_want() -> None:
    async with (
        pair() as (a, b),
        a.client() as here,
        b.client() as there,
        there.consumer("q", filter="colour = 'red'") as red,
        here.consumer("q") as all_of_it,
    ):
        await a.cluster("mesh").wait_for(queue="q", consumers=2, timeout=10)
        await here.send_many("q", COLOURS)
        there_got = await bodies(red, 4)
        here_got = await bodies(all_of_it, 6)
        assert sorted(there_got + here_got) == sorted(message.body for message in COLOURS)
        assert set(there_got) <= set(RED)


async def test_a_local_consumer_that_does_not_want_a_message_leaves_it_to_one_elsewhere_that_does() -> None:
    async with (
        pair() as (a, b),
        a.client() as here,
        b.client() as there,
        here.consumer("q", filter="colour = 'red'") as red,
        there.consumer("q", filter="colour = 'blue'") as blue,
    ):
        await a.cluster("mesh").wait_for(queue="q", consumers=2, timeout=10)
        await here.send_many("q", COLOURS)
        assert await bodies(red, 5) == RED
        assert await bodies(blue, 5) == BLUE
