"""The changes of connectors in a network that runs, and the reading of advisories."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from meshq import Delivery, MeshqError
from meshq.address import ADVISORY
from qa.network.shape import LAST, QUEUES

if TYPE_CHECKING:
    from qa.network.scenario import NetworkNode, SimulatedNetwork

#: Simulated seconds in which an advisory comes in peace.
BOUND_S: Final = 10.0


async def rewire(stage: SimulatedNetwork, node: NetworkNode) -> None:
    """Take a connector out of a broker that runs, and give it one of this name again."""
    connectors = stage.shape.connectors(node.name)
    if not connectors or not node.running:
        return
    broker, one = node.broker, stage.rng.choice(connectors)
    with suppress(MeshqError):
        await broker.remove_network(one.name)
        stage.seen("rewired")
        await trio.sleep(stage.rng.choice((0.0, 0.5, 3.0)))
        await broker.add_network(one)


class AdvisoryReader:
    """A program that reads advisories as it does any other topic: now here, now there, and at one broker in peace."""

    def __init__(self, stage: SimulatedNetwork) -> None:
        self._stage = stage
        self._rng = stage.simulation.swarm.rng("advisories")

    async def roam(self) -> None:
        """Read at one broker after the other, as long as the faults last."""
        stage = self._stage
        while not stage.closing:
            node = stage.nodes[self._rng.choice(stage.shape.names)]
            queue, until = self._rng.choice(QUEUES), trio.current_time() + self._rng.uniform(1.0, 5.0)
            if node.running:
                done = trio.Event()
                node.node.spawn(self._read, node, queue, until, done)
                with trio.move_on_after(until + 2 - trio.current_time()):
                    await done.wait()
            await trio.sleep(self._rng.uniform(0.0, 1.0))

    async def _read(self, node: NetworkNode, queue: str, until: float, done: trio.Event) -> None:
        with suppress(MeshqError):
            async with (
                node.broker.client() as client,
                client.subscribe(f"{ADVISORY}Consumer.Queue.{queue}", ack="auto") as reader,
            ):
                while trio.current_time() < until and not self._stage.closing:
                    for told in await reader.receive_many(100, timeout=0.5):
                        self._judge(node, queue, told)
        done.set()

    async def check(self) -> None:
        """Check that a broker tells who reads there of a consumer that comes, and of its end."""
        node = self._stage.nodes[self._rng.choice(self._stage.shape.names)]
        kinds: list[object] = []
        async with (
            node.broker.client() as client,
            client.subscribe(f"{ADVISORY}Consumer.Queue.{LAST}", ack="auto") as reader,
        ):
            async with client.consumer(LAST):
                pass
            with trio.move_on_after(BOUND_S):
                while {"consumer_created", "consumer_closed"} - {*kinds}:
                    for told in await reader.receive_many(100, timeout=0.5):
                        self._judge(node, LAST, told)
                        kinds.append(told.properties.get("notification"))
        if {"consumer_created", "consumer_closed"} - {*kinds}:
            self._stage.wrong("W8", f"of a consumer at {node.name} that came and went its broker told {kinds}")

    def _judge(self, node: NetworkNode, queue: str, told: Delivery) -> None:
        """Check that an advisory is of this broker and of this queue."""
        self._stage.seen("advised")
        address = told.properties.get("address")
        if told.path or address != queue:
            self._stage.wrong("W8", f"at {node.name} an advisory of {queue} tells of {address}, from {told.path}")
