"""Memory networks for tests, quiet unless told otherwise."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from meshq.abc import Stream
from meshq.testing import MemoryNetwork, NetworkSettings

#: Every segment takes a second, and nothing is left to chance.
QUIET = NetworkSettings(
    latency_s_min=1.0, latency_s_max=1.0, split_chance=0.0, short_read_chance=0.0, buffer_bytes=1_000
)


@asynccontextmanager
async def running(settings: NetworkSettings = QUIET, seed: int = 0) -> AsyncIterator[MemoryNetwork]:
    fabric = MemoryNetwork(random.Random(seed), settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.run)
        yield fabric
        nursery.cancel_scope.cancel()


async def join(fabric: MemoryNetwork, client: str = "client", server: str = "server") -> tuple[Stream, Stream]:
    """Both ends of a new connection between two hosts."""
    near_network, far_network = fabric.host(client), fabric.host(server)
    listener = await far_network.listen(server, 0)
    near = await near_network.connect(server, listener.port)
    far = await listener.accept()
    listener.close()
    return near, far


async def read_all(stream: Stream, into: bytearray) -> None:
    """Read until the end, or until the stream breaks."""
    while data := await stream.receive(1 << 20):
        into += data


async def within(seconds: float, function: Any, *arguments: Any) -> Any:
    """The result of an async call, or ``"waits"`` if it has none by then."""
    with trio.move_on_after(seconds):
        return await function(*arguments)
    return "waits"
