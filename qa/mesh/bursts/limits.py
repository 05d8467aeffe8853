"""A queue with room for a few messages at each node but one, from which messages come over the links to the others.

What has no room waits at the sender, or is paged, or dropped, as the seed says.  No more may be lost than the nodes
have said and counted that they drop; and at the end, when nothing fails, just as much.
"""

from __future__ import annotations

import functools
from typing import Final

import trio

from meshq.broker import Core
from meshq.broker.catalog._address_quota import UNLIMITED, AddressQuota
from meshq.broker.catalog._producer_credit import ProducerCredit
from meshq.client import Client, Delivery
from meshq.message import Message
from meshq.node import Broker
from meshq.notifications import AddressFull, MemoryFull, Notification
from meshq.settings import AddressSettings, FullPolicy
from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of
from qa.mesh.bursts.flood import Burst, Flood
from qa.mesh.node import MeshNode
from qa.simulation.workload import SETTINGS, Actor, Dial, Scene
from qa.simulation.workload_receive import Queues, Receiver

#: A queue that every node has, with a consumer at each.
BOUNDED: Final = "bounded"
#: What the others do when they are full.
POLICIES: Final[tuple[FullPolicy, ...]] = ("block", "block", "fail", "drop", "page")
#: So many messages, and as many at a time as all nodes together have no room for.
ROOM: Final = (1, 2, 4, 40)
#: ``held_back``: messages were seen that wait because their address is full at the other node.  ``dropped_over_link``,
#: ``paged_over_link``: of the last messages some were.  ``credit_asked``: a link has given back what it did not use.
LIMIT_SIGHTS: Final = ("bounded", "held_back", "dropped_over_link", "paged_over_link", "credit_asked")
BOUNDED_BURST: Final = Burst(BOUNDED, size=25, body_bytes=200)
#: The last messages: bursts, and messages of each, more than there is room for at all nodes.
LAST_BURSTS: Final = 10
LAST_SIZE: Final = 20
#: Seconds in which the last messages have come to rest, and are gone.
LAST_S: Final = 30.0
PAUSE_S: Final = 0.2


class MeshLimits:
    """The bounded queue of one seed: who sends to the queue; empty: there is none."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...], *, drained: bool) -> None:
        self._swarm = swarm
        self._drained = drained
        rng = swarm.rng("mesh/limits")
        self.sender = rng.choice(names) if swarm.on("mesh.limits") else ""
        self.queues = [BOUNDED] if self.sender else []
        #: What happens to messages that have no room, and the room of each node.
        self.policy: FullPolicy = rng.choice(POLICIES)
        self.room: int = rng.choice(ROOM)
        # Links that may have credit at a time: one that a drain has dialed, too.
        self._links = len(names) - 1 + drained
        # Where messages are sent nothing is refused: they come in, and wait for the others.
        self._there = AddressSettings(full_policy=self.policy, max_size_messages=self.room)
        # The lives that have said that they drop messages, and the quotas of these, which count them; ordered sets.
        self._unknown: dict[Broker, None] = {}
        self._dropping: dict[AddressQuota, None] = {}
        self._let_go = False
        for sight in LIMIT_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        swarm.count("seen.bounded", int(bool(self.sender)))

    def known(self, history: History) -> None:
        """Tell the history the queue whose messages may come out of their order, or be dropped.

        A node that leaves hands over what it kept for its own consumers, too: behind later messages of the same sender
        that were dealt to the other node and waited for room there.
        """
        if self._drained:
            history.expected.moves(*self.queues)
        if self.policy == "drop":
            history.expected.drops(*self.queues)

    def settings(self, node: str) -> dict[str, AddressSettings]:
        """Return the address settings of a node."""
        return {BOUNDED: self._there} if self.sender and node != self.sender else {}

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the sender and the receiver of a node."""
        if not self.sender:
            return []
        rng = self._swarm.rng
        name = f"bounded-receiver-{node}"
        actors: list[Actor] = [Receiver(scene, name, rng(f"actor/{name}"), dial, Queues((BOUNDED,), node))]
        if node == self.sender:
            name = f"bounded-sender-{node}"
            actors.append(Flood(scene, name, rng(f"actor/{name}"), dial, BOUNDED_BURST))
        return actors

    # -- what is dropped, and how much is there

    def listen(self, broker: Broker) -> None:
        """Hear whether a life drops messages: it has to say so."""
        if self.sender and self.policy == "drop":
            broker._event_bus.listen(functools.partial(self._hear, broker))

    def _hear(self, broker: Broker, event: Notification) -> None:
        address = isinstance(event, AddressFull) and event.address == BOUNDED
        if address or (isinstance(event, MemoryFull) and event.policy == "drop"):
            self._unknown[broker] = None

    def _find(self) -> None:
        for broker in list(self._unknown):
            # It may say so while it starts.
            if broker._node is not None:
                quota = broker._node.core.router.quotas.get(BOUNDED)
                if quota is not None:
                    self._dropping[quota] = None
                del self._unknown[broker]

    @property
    def dropped(self) -> int:
        """How many messages were dropped in all lives of all nodes."""
        self._find()
        return sum(quota.dropped for quota in self._dropping)

    def look(self, history: History, node: str, core: Core) -> None:
        """Write down how many messages a node has of the queue, and how many it may have."""
        self._find()
        quota = core.router.quotas.get(BOUNDED)
        if quota is not None and self.policy in ("block", "fail"):
            # One more for each link.
            history.bounded(f"messages of {BOUNDED} at {node}", quota.messages, self.room + self._links)
            peers = sum(getattr(session, "peering", None) is not None for session in core.sessions)
            history.bounded(f"links that have credit for {BOUNDED} at {node}", len(quota._credits.links), peers)
            promised = sum(credit.promised for credit in quota._credits if credit.until < UNLIMITED)
            history.bounded(f"promises of {BOUNDED} at {node} that are not counted", abs(promised - quota._reserved), 0)

    # -- the end

    async def judge(self, scene: Scene, nodes: list[MeshNode]) -> None:
        """Send more messages than there is room for while consumers settle none, and account for each of them.

        At last all of them are consumed.  The clients of the workload are dead, and nothing fails any more.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        scene.history.final.dropped_from(BOUNDED, self.dropped)
        here = next((node for node in nodes if node.place == self.sender), None)
        if here is None:
            # It is the node that has gone for good.
            return
        # The sessions of the workload's receivers end.
        await trio.sleep(SETTINGS["connection_ttl"] * 2)
        before, others = self.dropped, [node for node in nodes if node is not here]
        # For nodes that are gone for good messages wait to the end.
        stays = {node.place: node.waiting for node in nodes}
        unused = [credit for node in others for credit in _unused(node)]
        async with trio.open_nursery() as consumers:
            for node in nodes:
                consumers.start_soon(self._hold, scene.history, node)
            await trio.sleep(PAUSE_S)
            async with here.client() as client:
                for _ in range(LAST_BURSTS):
                    await _send(scene, f"last-bounded@{here.place}", client, here.place)
                    await trio.sleep(PAUSE_S)
            with trio.move_on_after(LAST_S):
                while sum(node.waiting - stays[node.place] - node.blocked for node in nodes):  # noqa: ASYNC110 - a test polls
                    await trio.sleep(PAUSE_S)
            dropped, there = self.dropped - before, [_there(node) for node in nodes]
            waiting = sum(node.waiting - stays[node.place] for node in nodes)
            lacking = LAST_BURSTS * LAST_SIZE - sum(there) - waiting - dropped
            here.left(f"messages of {BOUNDED} that neither are there nor were dropped", lacking)
            self._count(dropped, others, unused)
            self._let_go = True
            with trio.move_on_after(LAST_S):
                while sum(_there(node) + node.waiting for node in nodes):  # noqa: ASYNC110 - a test polls
                    await trio.sleep(PAUSE_S)
            here.left(f"messages of {BOUNDED} that are not consumed", sum(_there(node) for node in nodes))
            consumers.cancel_scope.cancel()
        scene.history.final.dropped_from(BOUNDED, self.dropped)

    def _count(self, dropped: int, others: list[MeshNode], unused: list[ProducerCredit]) -> None:
        count = self._swarm.count
        count("seen.dropped_over_link", int(dropped > 0))
        count("seen.credit_asked", int(any(credit.promised == 1 for credit in unused)))
        paged = any(_there(node) > self.room for node in others)
        count("seen.paged_over_link", int(self.policy == "page" and paged))

    async def _hold(self, history: History, node: MeshNode) -> None:
        """Hold the messages of a node until the last ones are judged.  Checkpoint: always.  Cancellation: ends it."""
        name = f"holder@{node.place}"
        held: list[Delivery] = []
        numbers: list[int] = []
        async with node.client() as client, client.consumer(BOUNDED) as consumer:
            while True:
                for one in await consumer.receive_many(50, timeout=PAUSE_S):
                    held.append(one)
                    numbers.append(
                        history.delivered(
                            name,
                            name,
                            BOUNDED,
                            one.body,
                            sequence=one.sequence,
                            node=node.place,
                            redelivered=one.redelivered,
                            delivery_count=one.delivery_count,
                        )
                    )
                if self._let_go and held:
                    op = history.settling(numbers)
                    await consumer.ack(*held, confirm=True)
                    history.settle_ok(op)
                    held, numbers = [], []


async def _send(scene: Scene, sender: str, client: Client, node: str) -> None:
    """Send a burst, and see it confirmed."""
    uids = [scene.uid() for _ in range(LAST_SIZE)]
    ops = [scene.history.sent(sender, BOUNDED, uid, node=node) for uid in uids]
    await client.send_many(BOUNDED, [Message(body_of(uid)) for uid in uids])
    for op in ops:
        scene.history.send_ok(op)


def _there(node: MeshNode) -> int:
    """How many messages a node has in its queue."""
    queue = node.serving_core.router.queues[BOUNDED]
    counts = queue.counts
    return counts.ready + counts.unacked + counts.delayed + queue.scheduled.messages


def _unused(node: MeshNode) -> list[ProducerCredit]:
    """The credits of links at a node that have more than one message, and have sent none."""
    quota = node.serving_core.router.quotas.get(BOUNDED)
    credits = quota._credits.links if quota is not None else ()
    return [credit for credit in credits if not credit.count and 1 < credit.promised < UNLIMITED]
