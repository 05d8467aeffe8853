"""Redistribution in the simulated mesh: the watch over each node's moves, and the last messages that have to move."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from typing import ClassVar, Final

import trio

from meshq import abc
from meshq.client import Client, Consumer, Delivery
from meshq.message import Message
from meshq.settings import AddressSettings
from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of
from qa.mesh.bursts.groups import PINNED
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
#: Of these, if what no consumer here takes goes, too, every other one is for a consumer here, and stays.
KEPT: Final = "kept = TRUE"
#: So many of these are delivered before they are asked for; all others could go.
WINDOW: Final = 3
#: So many are with a consumer at their node, which leaves them.
HELD: Final = 5
REDISTRIBUTION_SIGHTS: Final = ("redistributed", "kept_for_a_consumer", "unmatched", "redistributed_again")


class MeshRedistribution:
    """The redistribution of a seed: its settings, and a guard for each life of each node."""

    def __init__(self, swarm: Swarm, history: History) -> None:
        self._swarm = swarm
        self._delay_s = swarm.rng("mesh/redistribution").choice(DELAYS_S)
        for queue in CONSUMED:
            history.expected.redistributes(queue)
        for sight in REDISTRIBUTION_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        #: Whether what no consumer of its node takes goes, too, from the queue that has none before the end.
        self.unmatched: bool = swarm.on("redistribution.unmatched")
        swarm.count("seen.unmatched", int(self.unmatched))

    def make(self, node: MeshNode) -> list[_Guard]:
        """The guard of a node's life."""
        return [_Guard(self._swarm, node, self._delay_s)]

    def seen(self, sight: str, times: int) -> None:
        """Count a sight."""
        self._swarm.count(f"seen.{sight}", times)

    async def furnish(self, client: Client) -> None:
        """Set the delay at a node, which the node keeps over all its lives.

        Checkpoint: always.  Cancellation: it may be set or not.
        """
        for address in (*CONSUMED, STRANDED):
            unmatched = self.unmatched and address == STRANDED
            settings = AddressSettings(redistribution_delay=self._delay_s, redistribute_unmatched=unmatched)
            await client.set_address_settings(address, settings)


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
        kept = before is not None and not found.settings.redistribute_unmatched and queue != PINNED
        if before is not None and now != before and kept:
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


async def redistribute_in_order(scene: Scene, nodes: list[MeshNode], redistribution: MeshRedistribution) -> None:
    """Send to a queue of each node without a consumer, and receive at the next node: all messages, once and in order.

    If what no consumer takes goes, too, a consumer that wants every other message is there, and gets just these.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    for node, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        # No node may still count on the consumers of the node before.
        await trio.sleep(QUIET_S)
        uids = [scene.uid() for _ in range(MESSAGES)]
        ops = [scene.history.sent(f"last@{node.place}", STRANDED, uid, node=node.place) for uid in uids]
        kept = {uid: redistribution.unmatched and bool(index % 2) for index, uid in enumerate(uids)}
        async with node.client() as client, AsyncExitStack() as stack:
            await client.send_many(STRANDED, [Message(body_of(uid), properties={"kept": kept[uid]}) for uid in uids])
            for op in ops:
                scene.history.send_ok(op)
            held = await _left_behind(client)
            stay, go = ([body_of(uid) for uid in uids if kept[uid] is here] for here in (True, False))
            if stay:
                consumer = await stack.enter_async_context(client.consumer(STRANDED, filter=KEPT, window=WINDOW))
            got = await received(scene.history, other, STRANDED, len(go))
            _compare(node, "go", go, got)
            again = [one for one in got if one.body in held]
            node.left("stranded messages whose delivery is forgotten", sum(not one.redelivered for one in again))
            redistribution.seen("redistributed_again", len(again))
            if stay:
                _compare(node, "stay", stay, await _taken(scene.history, node, STRANDED, consumer, len(stay)))


async def _left_behind(client: Client) -> list[bytes]:
    """Return the first messages, which a consumer has got that leaves without a word on them."""
    async with client.consumer(STRANDED, window=HELD) as consumer:
        got = await consumer.receive_many(HELD, timeout=ARRIVED_S)
    return [one.body for one in got]


def _compare(node: MeshNode, way: str, sent: list[bytes], got: list[Delivery]) -> None:
    wrong = sum(map(bytes.__ne__, sent, [one.body for one in got]))
    node.left(f"stranded messages that {way}, lost, doubled or out of order", wrong)
    node.left(f"stranded messages that {way}, too few or too many", abs(len(sent) - len(got)))


async def received(history: History, node: MeshNode, queue: str, messages: int) -> list[Delivery]:
    """Receive so many messages of a queue at a node, and any that come soon after these.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    got: list[Delivery] = []
    async with node.client() as client, client.consumer(queue) as consumer:
        got += await _taken(history, node, queue, consumer, messages)
    return got


async def _taken(history: History, node: MeshNode, queue: str, consumer: Consumer, messages: int) -> list[Delivery]:
    name = f"finder@{node.place}"
    got: list[Delivery] = []
    with trio.move_on_after(ARRIVED_S):
        while True:
            patience_s = QUIET_S if len(got) >= messages else ARRIVED_S
            batch = await consumer.receive_many(7, timeout=patience_s)
            if not batch:
                break
            numbers = [
                history.delivered(
                    name,
                    name,
                    queue,
                    one.body,
                    sequence=one.sequence,
                    node=node.place,
                    redelivered=one.redelivered,
                    delivery_count=one.delivery_count,
                )
                for one in batch
            ]
            op = history.settling(numbers)
            await consumer.ack(*batch, confirm=True)
            history.settle_ok(op)
            got += batch
    return got
