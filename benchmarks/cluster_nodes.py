"""A node of a cluster in a process of its own, which does what the benchmark tells it, one order after the other.

The first order names the node and those that it lists.  An answer says what the order was to find out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.ours import ACCEPTOR, CLUSTER, QUEUE
from benchmarks.workload import NUMBER, Workload
from meshq import AddressSettings, Broker, ClusterConnection
from meshq.wire._receive_buffer import ReceiveBuffer

MIB = 1024 * 1024
#: Messages of one call.
BATCH = 10_000
#: Bodies from this size on are made piece by piece.
LARGE_BYTES = MIB
#: Longer than any of these may take.
PATIENCE_S = 300.0
#: Between two looks at something that nobody tells of.
LOOK_S = 0.01


class FrameCounter:
    """Counts the frames that this process receives, over all of its connections."""

    def __init__(self) -> None:
        self.frames = 0
        self._feed = ReceiveBuffer.feed
        counter = self

        def counted(buffer: ReceiveBuffer, data: bytes) -> Any:
            frames = counter._feed(buffer, data)
            counter.frames += len(frames)
            return frames

        ReceiveBuffer.feed = counted  # type: ignore[method-assign]


def peak_bytes() -> int:
    """The most memory that this process had so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


async def pieces(size: int) -> AsyncIterator[bytes]:
    """A large body, a MiB at a time."""
    for _ in range(size // MIB):
        yield bytes(MIB)
        await trio.lowlevel.checkpoint()


class Node:
    """What a node does when it is told to."""

    def __init__(self, broker: Broker, workload: Workload, frames: FrameCounter) -> None:
        self._broker = broker
        self._workload = workload
        self._frames = frames
        self._cluster = broker.cluster(CLUSTER)

    async def linked(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait for so many nodes."""
        await self._cluster.wait_for(nodes=order["nodes"], timeout=PATIENCE_S)
        return {}

    async def knows(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait until this node knows so many queues of the others; the answer says when."""
        await self.linked(order)
        for name in order["last"]:
            await self._cluster.wait_for(queue=name, queues=1, timeout=PATIENCE_S)
        with trio.fail_after(PATIENCE_S):
            # The last queue of a node is not the last one that is told.
            while len(self._cluster.bindings()) < order["queues"]:  # noqa: ASYNC110 - it has to be looked at
                await trio.sleep(LOOK_S)
        return {"at": time.monotonic()}

    async def fill(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send all messages of the workload to a queue of this node."""
        workload = self._workload
        async with self._broker.client() as client:
            await client.create_queue(QUEUE)
            if workload.size >= LARGE_BYTES:
                for _ in range(workload.count):
                    await client.send(QUEUE, pieces(workload.size))
                return {}
            for start in range(0, workload.count, BATCH):
                numbers = range(start, min(start + BATCH, workload.count))
                await client.send_many(QUEUE, [NUMBER.pack(number).ljust(workload.size, b"\0") for number in numbers])
        return {}

    async def drain(self, order: dict[str, Any]) -> dict[str, Any]:
        """Hand everything over; the answer says how long that took."""
        started = time.monotonic()
        async with self._broker.drain() as progress:
            pass
        return {"seconds": time.monotonic() - started, "state": progress.state}

    async def ready(self, order: dict[str, Any]) -> dict[str, Any]:
        """Count the messages that wait here."""
        async with self._broker.client() as client:
            return {"ready": (await client.queue(QUEUE)).ready}

    async def facts(self, order: dict[str, Any]) -> dict[str, Any]:
        """Tell what this node has received, and the most memory that it had."""
        await trio.lowlevel.checkpoint()
        return {"frames": self._frames.frames, "peak": peak_bytes()}


def broker_of(name: str, others: list[str], workload: Workload, *, linked: bool = True) -> Broker:
    """The node, whose data is in the directory of its name."""
    return Broker(
        name,
        data_dir=str(Path(workload.directory) / name),
        acceptors=[ACCEPTOR],
        services=[ClusterConnection(CLUSTER, static_connectors=others)] if linked else [],
        address_settings={"#": AddressSettings(redistribution_delay=0.0)},
    )


async def run_node(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Be told who this is, have the queues, and do what is asked for until told to stop."""
    order, frames = await parent.meet_async(), FrameCounter()
    name = order["name"]
    async with broker_of(name, [], workload, linked=False) as broker, broker.client() as client:
        for number in range(workload.queues):
            await client.create_queue(f"{name}.{number}")
    order = await parent.meet_async()
    async with broker_of(name, order["others"], workload) as broker:
        node, answer = Node(broker, workload, frames), {"url": broker.urls[0]}
        while (order := await parent.meet_async(**answer))["do"] != "stop":
            answer = await getattr(node, order["do"])(order)
    return {}


if __name__ == "__main__":
    serve({"node": run_node})
