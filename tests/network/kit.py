"""Networks of brokers on hosts of their own, in a network and with disks in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from meshq import Client, Consumer, Delivery, Message, NetworkConnector, abc
from meshq.network._direction import Direction
from tests.bridge.kit import URL, World, until, world

__all__ = ["World", "until", "world"]


def to(*others: str, name: str = "", **settings: Any) -> NetworkConnector:
    """A connector to these brokers."""
    urls = ",".join(URL.format(other) for other in others)
    return NetworkConnector(
        name or "to-" + "-".join(others), f"static:({urls})", **{"retry_interval": 0.05, **settings}
    )


def connectors(*links: tuple[str, dict[str, Any]]) -> Callable[[], Sequence[abc.Service]]:
    """Connectors to brokers, made anew for each life: the name of each, and settings."""
    return lambda: [to(other, **settings) for other, settings in links]


async def start(made: World, graph: dict[str, str], *, names: dict[str, Any] | None = None, **settings: Any) -> None:
    """Start brokers, by name with the names of those to which they have connectors, and wait until they are linked."""
    for name, others in graph.items():
        about = dict(names or {})
        await made.start(name, connectors(*((other, {**settings, **about}) for other in others)))
    for name, others in graph.items():
        for other in others:
            await made.brokers[name].network(f"to-{other}").wait_for(timeout=30)


async def known(made: World, link: str, queue: str, consumers: int) -> None:
    """Wait until the first broker of a link like ``"ab"`` forwards to so many consumers over it."""
    await made.brokers[link[0]].network(f"to-{link[1]}").wait_for(queue=queue, consumers=consumers, timeout=60)


@asynccontextmanager
async def consuming(
    made: World, name: str, queue: str = "q", **settings: Any
) -> AsyncIterator[tuple[Client, Consumer]]:
    """A consumer at a broker."""
    async with made.here(name) as client, client.consumer(queue, **settings) as consumer:
        yield client, consumer


@asynccontextmanager
async def subscribed(made: World, *names: str, topic: str = "t", **settings: Any) -> AsyncIterator[list[Consumer]]:
    """Subscribers of a topic at these brokers."""
    async with AsyncExitStack() as stack:
        found = []
        for name in names:
            client = await stack.enter_async_context(made.here(name))
            found.append(await stack.enter_async_context(client.subscribe(topic, **settings)))
        yield found


async def publish(made: World, name: str, bodies: Sequence[bytes | Message], topic: str = "t") -> None:
    """Send to a topic."""
    async with made.here(name) as client:
        await client.create_address(topic, routing="multicast")
        await client.send_many(topic, bodies)


def carried(made: World, link: str) -> int:
    """Messages that have gone over a link like ``"ab"``."""
    return made.brokers[link[0]].network(f"to-{link[1]}").bridges()[0].carried


async def take(consumer: Consumer, count: int, *, quiet: float = 5) -> list[Delivery]:
    """Take so many messages, acknowledge them, and see that no more come."""
    got: list[Delivery] = []
    while batch := await consumer.receive_many(1_000, timeout=quiet):
        got += batch
        await consumer.ack(*batch, confirm=True)
    assert len(got) == count, f"{len(got)} messages instead of {count}"
    return got


def forward(made: World, link: str) -> Direction:
    """The direction of a link like ``"ab"``."""
    found = made.brokers[link[0]].network(f"to-{link[1]}")._links[0].forward
    assert found is not None
    return found


async def quiet(seconds: float = 5) -> None:
    """Let everything that can move move."""
    await trio.sleep(seconds)
