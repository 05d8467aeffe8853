"""A body of ten megabytes: one file, pieces on the wire, and a bounded memory on both sides."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio

from meshq import Broker, abc, connect, limits
from meshq.settings import Acceptor
from meshq.testing import MemoryNetwork
from tests.node.lives import TrioWall, machine
from tests.node.wires import NETWORK, URL
from tests.process import Process

SIZE = 10_000_000
BODY = random.Random(19).randbytes(SIZE)
BLOCK_BYTES = 256 * limits.KIB
#: What one side has on its way at most: a window of blocks.
WINDOW_BYTES = 8 * BLOCK_BYTES


@attrs.define(eq=False)
class Scales:
    """What one machine sends: the largest piece, the most that waits to leave, and all of it."""

    largest: int = 0
    waiting: int = 0
    total: int = 0


@attrs.define(eq=False)
class WeighedStream(abc.Stream):
    """A stream whose pieces are weighed."""

    inner: abc.Stream
    scales: Scales

    def send_nowait(self, data: abc.Buffer) -> int:
        size = len(memoryview(data).cast("B"))
        waiting = self.inner.send_nowait(data)
        self.scales.largest = max(self.scales.largest, size)
        self.scales.waiting = max(self.scales.waiting, waiting)
        self.scales.total += size
        return waiting

    async def flush(self) -> None:
        await self.inner.flush()

    async def receive(self, size_max: int) -> bytes:
        return await self.inner.receive(size_max)

    def close(self) -> None:
        self.inner.close()

    @property
    def peer(self) -> str:
        return self.inner.peer


@attrs.define(eq=False)
class WeighedListener(abc.Listener):
    """A listener whose streams are weighed."""

    inner: abc.Listener
    scales: Scales

    async def accept(self) -> abc.Stream:
        return WeighedStream(await self.inner.accept(), self.scales)

    @property
    def port(self) -> int:
        return self.inner.port

    def close(self) -> None:
        self.inner.close()


@attrs.define(eq=False)
class WeighedNetwork(abc.Network):
    """A machine's network, with scales."""

    inner: abc.Network
    scales: Scales = attrs.field(factory=Scales)

    async def connect(self, host: str, port: int) -> abc.Stream:
        return WeighedStream(await self.inner.connect(host, port), self.scales)

    async def listen(self, host: str, port: int) -> abc.Listener:
        return WeighedListener(await self.inner.listen(host, port), self.scales)


async def made() -> AsyncIterator[bytes]:
    """The body as a program makes it; nobody has all of it."""
    for start in range(0, SIZE, 100_000):
        await trio.lowlevel.checkpoint()
        yield BODY[start : start + 100_000]


@pytest.mark.parametrize("whole", [True, False])
async def test_ten_megabytes_are_one_file_and_cross_in_pieces_in_bounded_memory(whole: bool) -> None:
    network = MemoryNetwork(random.Random(0), NETWORK)
    client_side = WeighedNetwork(network.host("client"))
    broker_side = WeighedNetwork(network.host("hq"))
    outside = machine(network=broker_side, wall=TrioWall())
    most = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.run)

        async def begin() -> tuple[Process, Broker]:
            process = Process(outside)
            acceptors = [Acceptor("tcp://hq:5000", insecure=True)]
            broker = Broker("hq", data_dir="/data/hq", acceptors=acceptors, env=process.env)
            await nursery.start(process.live, broker)
            return process, broker

        async def watch() -> None:
            nonlocal most
            while True:
                if broker.state == "active":
                    most = max(most, broker.statistics().memory_used)
                await trio.sleep(0.002)

        process, broker = await begin()
        watching = trio.CancelScope()
        nursery.start_soon(in_scope, watching, watch)
        env = machine(network=client_side, wall=TrioWall())
        async with connect(URL, env=env, retry_interval=0.01) as client:
            await client.send("q", BODY if whole else made())
            (file,) = outside.disk.names("/data/hq/large")
            opened = outside.disk.open(f"/data/hq/large/{file}")
            assert SIZE <= opened.size() < SIZE * 1.01
            opened.close()
            # It is as durable as any other message.
            process.kill()
            await process.ended()
            process, broker = await begin()
            read = 0
            async with client.consumer("q") as consumer:
                delivery = await consumer.receive(timeout=30)
                assert delivery is not None and delivery.size == SIZE
                async with delivery.open() as stream:
                    async for chunk in stream:
                        assert chunk == BODY[read : read + len(chunk)]
                        assert len(chunk) <= limits.MIB
                        read += len(chunk)
                assert read == SIZE
                await consumer.ack(delivery, confirm=True)
            await trio.sleep(1)
            assert outside.disk.names("/data/hq/large") == []
        watching.cancel()
        await broker.stop()
        nursery.cancel_scope.cancel()
    for scales in (client_side.scales, broker_side.scales):
        # All of it went that way, and never more at once than the window has.
        assert scales.total > SIZE
        assert scales.largest <= BLOCK_BYTES + limits.KIB
        assert scales.waiting <= WINDOW_BYTES + 8 * limits.KIB
    assert most <= WINDOW_BYTES


async def in_scope(scope: trio.CancelScope, task: Any) -> None:
    """Run a task that can be ended."""
    with scope:
        await task()
