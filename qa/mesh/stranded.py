"""Redistribution in the simulated mesh: the watch over each node's moves, and the last messages that have to move."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import trio

from meshq import abc
from meshq.client import Client, Delivery
from meshq.settings import AddressSettings
from meshq.testing import Swarm
from qa.checkers.history import History, body_of
from qa.mesh.node import MeshNode
from qa.simulation.workload import CONSUMED, Scene

#: A queue of every node that has no consumer before the end.
STRANDED: Final = "stranded"
#: Messages that wait there at each node, more than one move takes.
MESSAGES: Final = 80
#: Seconds within which these have arrived; and in which no others come.
ARRIVED_S: Final = 20.0
QUIET_S: Final = 3.0
#: Seconds for which a queue has no consumer before its messages move.
DELAYS_S: Final = (0.0, 0.0, 0.5)
#: The difference of two times may be a little less than it was.
ROUNDING_S: Final = 0.001
REDISTRIBUTION_SIGHTS: Final = ("redistributed", "kept_for_a_consumer")


class MeshRedistribution:
    """The redistribution of a seed: its settings, and a guard for each life of each node."""

    def __init__(self, swarm: Swarm, history: History) -> None:
        self._swarm = swarm
        self._delay_s = swarm.rng("mesh/redistribution").choice(DELAYS_S)
        for queue in CONSUMED:
            history.expected.redistributes(queue)
        for sight in REDISTRIBUTION_SIGHTS:
            swarm.count(f"seen.{sight}", 0)

    def make(self, node: MeshNode) -> list[_Guard]:
        """The guard of a node's life."""
        return [_Guard(self._swarm, node, self._delay_s)]

    async def furnish(self, client: Client) -> None:
        """Set the delay at a node, which the node keeps over all its lives.

        Checkpoint: always.  Cancellation: it may be set or not.
        """
        for address in (*CONSUMED, STRANDED):
            await client.set_address_settings(address, AddressSettings(redistribution_delay=self._delay_s))


class _Guard(abc.Service):
    """Looks at each change of a queue: nothing may leave for another node while a consumer is here, nor before the
    delay is over."""

    kind: ClassVar[str] = "guard"
    name = "guard"

    def __init__(self, swarm: Swarm, node: MeshNode, delay_s: float) -> None:
        self._swarm = swarm
        self._node = node
        self._delay_s = delay_s
        # Since when each queue has had no consumer.
        self._free: dict[str, float] = {}
        # The messages that have left each queue that had a consumer at the last look.
        self._left: dict[str, int] = {}
        # The messages that had left each queue at the last look.
        self._moved: dict[str, int] = {}

    def announce(self, control: abc.NodeControl) -> None:
        """A guard needs nothing of the node."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Look until cancelled."""
        broker.stranded.watch(self._look)
        task_status.started()
        await trio.sleep_forever()

    def _look(self, queue: str) -> None:
        """A queue or its consumers have changed."""
        core, before = self._node.core, self._left.pop(queue, None)
        found = core.router.queues.get(queue) if core is not None else None
        if found is None:
            # The node is just starting, or the queue is gone.
            return
        now = found.counts.removed["redistributed"]
        if queue in (*CONSUMED, STRANDED):
            self._count(queue, max(0, now - self._moved.get(queue, now)))
            self._moved[queue] = now
        if before is not None and now != before:
            self._node.left(f"messages moved away from a consumer of {queue}", now - before)
        if found.roster.consumers:
            self._free.pop(queue, None)
            self._left[queue] = now
            self._swarm.count("seen.kept_for_a_consumer", int(found.counts.ready > 0))
        else:
            self._free.setdefault(queue, trio.current_time())

    def _count(self, queue: str, messages: int) -> None:
        self._swarm.count("seen.redistributed", messages)
        waited = trio.current_time() - self._free.get(queue, -math.inf)
        if messages and waited < self._delay_s - ROUNDING_S:
            self._node.left(f"messages of {queue} moved after {waited} s", messages)


async def redistribute_in_order(scene: Scene, nodes: list[MeshNode]) -> None:
    """Send to a queue of each node without a consumer, and receive at the next node: all messages, once and in order.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    for node, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        uids = [scene.uid() for _ in range(MESSAGES)]
        sent = [body_of(uid) for uid in uids]
        ops = [scene.history.sent(f"last@{node.place}", STRANDED, uid, node=node.place) for uid in uids]
        async with node.client() as client:
            await client.send_many(STRANDED, sent)
        for op in ops:
            scene.history.send_ok(op)
        got = [one.body for one in await received(scene.history, other, STRANDED, MESSAGES)]
        node.left("stranded messages lost, doubled or out of order", sum(map(bytes.__ne__, sent, got)))
        node.left("stranded messages too few or too many", abs(len(sent) - len(got)))


async def received(history: History, node: MeshNode, queue: str, messages: int) -> list[Delivery]:
    """Receive so many messages of a queue at a node, and any that come soon after these.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    name = f"finder@{node.place}"
    got: list[Delivery] = []
    async with node.client() as client, client.consumer(queue) as consumer:
        with trio.move_on_after(ARRIVED_S):
            while True:
                patience_s = QUIET_S if len(got) >= messages else ARRIVED_S
                batch = await consumer.receive_many(7, timeout=patience_s)
                if not batch:
                    break
                numbers = [
                    history.delivered(name, name, queue, one.body, sequence=one.sequence, node=node.place)
                    for one in batch
                ]
                op = history.settling(numbers)
                await consumer.ack(*batch, confirm=True)
                history.settle_ok(op)
                got += batch
    return got
