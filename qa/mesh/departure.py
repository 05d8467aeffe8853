"""A node of the simulated mesh that drains before it goes for good: the crashes meanwhile, and the accounts of both."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import attrs
import trio

from meshq.abc import TransferInventory
from meshq.message import Message, MessageOrigin
from meshq.testing import MemoryNetwork, Simulation
from qa.checkers.history import body_of, queue_of
from qa.mesh.accounts import standing
from qa.mesh.drain import Drain
from qa.mesh.membership import NODES, URLS
from qa.mesh.node import MeshNode
from qa.mesh.stranded import received
from qa.simulation.accounts import recount
from qa.simulation.recovery import record_recoveries
from qa.simulation.workload import CONSUMED, Scene

#: Queues of every node that have no consumer before the end: small messages, more than two runs; large ones; and
#: messages with properties and a time to live; and messages that were moved there from a queue of their own.
SMALL: Final = "drained"
LARGE: Final = "drained.large"
OTHERS: Final = "drained.others"
MOVED: Final = "drained.moved"
SOURCE: Final = "drained.source"
DRAINED: Final = {SMALL: 600, LARGE: 12, OTHERS: 60, MOVED: 60}
FURNISHED: Final = (*DRAINED, SOURCE)
LARGE_BYTES: Final = 20_000
#: More than clocks are set by.
TTL_S: Final = 100_000.0
#: Crashes and lost links while a node drains, at most.
FAULTS_MAX: Final = 4
#: The calls of a disk within which a node dies, and seconds after which it is killed without.
FUSE_CALLS: Final = 60
FUSE_S: Final = 1.0
#: Seconds in which a drain comes to its end when nothing fails any more, and in which the others see the node again.
DRAINED_S: Final = 60.0
SEEN_S: Final = 60.0
#: Seconds in which acknowledgements are written.
WRITTEN_S: Final = 1.0
DRAIN_SIGHTS: Final = (
    "drained",
    "drain_crashed_leaving",
    "drain_crashed_target",
    "drain_cut",
    "drain_under_way",
)


@attrs.define
class _Life:
    """The drain of one life of the node that leaves."""

    #: When the node took nothing in any more.
    closed_s: float | None = None
    left: TransferInventory | None = None
    moved: int = 0

    def ended(self) -> bool:
        """Whether all that can move has moved."""
        left = self.left
        return left is not None and not self.moved and not left.forwarded and not {*DRAINED}.intersection(left.messages)


class _Watch:
    """Hears of one drain."""

    def __init__(self, departure: MeshDeparture) -> None:
        self._departure = departure
        self.life = _Life()

    def closed(self) -> None:
        """Note the moment."""
        self.life.closed_s = trio.current_time()
        self._departure.lives.append(self.life)

    def looked(self, left: TransferInventory, moved: int) -> None:
        """Note the inventory, and count the moved messages."""
        self.life.left, self.life.moved = left, moved
        self._departure.count("drained", moved)


class MeshDeparture:
    """The drain of the node that goes for good, to one of the others."""

    def __init__(self, simulation: Simulation, scene: Scene) -> None:
        assert isinstance(simulation.fabric, MemoryNetwork)
        self._simulation = simulation
        self._fabric = simulation.fabric
        self._scene = scene
        self._history = scene.history
        self._rng = simulation.swarm.rng("mesh/departure")
        self._begin = {name: trio.Event() for name in NODES}
        self._targets = {name: self._rng.choice([other for other in NODES if other != name]) for name in NODES}
        #: The lives of the node in which it took nothing in.
        self.lives: list[_Life] = []
        # What was sent to the queues that must be empty here and whole there, in order.
        self._sent: dict[str, list[int]] = {}
        # The node that leaves, and its target; with the ids of both.
        self._leaving: MeshNode | None = None
        self._target: MeshNode | None = None
        self._identities: dict[str, str] = {}
        for queue in CONSUMED:
            self._history.expected.redistributes(queue)
        for sight in DRAIN_SIGHTS:
            self.count(sight, 0)

    def count(self, sight: str, number: int = 1) -> None:
        """Count something that the seeds have to have met."""
        self._simulation.swarm.count(f"seen.{sight}", number)

    def make(self, node: MeshNode) -> list[Drain]:
        """The drain of a node's life, which begins when the node leaves."""
        name = node.place
        queues = (*CONSUMED, *DRAINED)
        return [Drain(URLS[self._targets[name]], self._begin[name], queues=queues, watch=_Watch(self))]

    async def prepare(self, node: MeshNode, others: list[MeshNode]) -> None:
        """Drain a node, among crashes of the node and its target, and compare the inventory with the journal.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        target = next(other for other in others if other.place == self._targets[node.place])
        self._leaving, self._target = node, target
        await target.serving()
        self._identities = {one.serving_core.settings.node_id.hex(): one.place for one in (node, target)}
        await self._fill(node)
        self._history.note(f"{node.place} drains to {target.place}")
        self._begin[node.place].set()
        for _ in range(self._rng.randrange(1, FAULTS_MAX + 1)):
            await trio.sleep(self._rng.choice((0.0, 0.05, 0.2)) * self._rng.random())
            await self._fail()
        await node.serving()
        await target.serving()
        with trio.move_on_after(DRAINED_S):
            while not (self.lives and self.lives[-1].ended()):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.1)
        node.left("drains without an end", int(not (self.lives and self.lives[-1].ended())))
        await self._recount()
        with trio.move_on_after(SEEN_S):
            # They hear how far their messages are stored before the node goes: none is in doubt then.
            while _not_linked(node, others):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.1)
        node.left("nodes that do not see it again", _not_linked(node, others))

    async def _fill(self, node: MeshNode) -> None:
        """Send messages to the queues without a consumer."""
        async with node.client() as client:
            for queue, messages in DRAINED.items():
                uids = self._sent[queue] = [self._scene.uid() for _ in range(messages)]
                ops = [self._history.sent(f"filler@{node.place}", queue, uid, node=node.place) for uid in uids]
                bodies = [body_of(uid, LARGE_BYTES if queue == LARGE else 0) for uid in uids]
                about: dict[str, Any] = {"ttl": TTL_S, "properties": {"colour": "red"}} if queue == OTHERS else {}
                await client.send_many(SOURCE if queue == MOVED else queue, [Message(body, **about) for body in bodies])
                for op in ops:
                    self._history.send_ok(op)
            await client.move_messages(SOURCE, MOVED)

    async def _fail(self) -> None:
        """Kill one of the two nodes at some call of its disk, or cut the link between the two nodes."""
        leaving, target = self._leaving, self._target
        assert leaving is not None and target is not None
        way = self._rng.choice(("leaving", "leaving", "target", "cut"))
        if way == "cut":
            self.count("drain_cut")
            self._fabric.partition([leaving.place], [target.place])
            await trio.sleep(self._rng.random())
            self._fabric.heal()
            return
        self.count(f"drain_crashed_{way}")
        victim = leaving if way == "leaving" else target
        await victim.serving()
        victim.node.fuse(self._rng.randrange(1, FUSE_CALLS), power=self._rng.random() < 0.5)
        with trio.move_on_after(FUSE_S):
            while not victim.node.life.dead:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
        victim.node.disk.faults.fuse = None
        if not victim.node.life.dead:
            victim.node.kill()
        self._history.note(f"{victim.place} has died in the drain")
        await self._conserved(f"crash {self._history.restarts} in a drain")
        await trio.sleep(self._rng.random())
        await victim.serving()

    async def _conserved(self, when: str) -> None:
        """Count the messages on both disks, as if both nodes had died now: each is there once."""
        leaving, target = self._leaving, self._target
        assert leaving is not None and target is not None
        states = await self._states(when, leaving, target)
        found: Counter[int] = Counter()
        for place, live in standing(states, self._identities).items():
            if queue_of(place) in DRAINED:
                found.update(uid for uid, _ in live)
                self.count("drain_under_way", int(">" in place))
        sent = {uid for uids in self._sent.values() for uid in uids}
        leaving.left(f"messages lost at {when}", len(sent - found.keys()))
        leaving.left(f"messages doubled at {when}", sum(number > 1 for number in found.values()))

    async def _states(self, when: str, *nodes: MeshNode) -> dict[str, Any]:
        """Recount the disks of nodes, all at one moment."""
        disks = {node.place: node.node.disk.copy() for node in nodes}
        states: dict[str, Any] = {}
        for name, disk in disks.items():
            subject = f"the store of {name} at {when}"
            await record_recoveries(self._simulation, self._history, subject, disk, recount, crashes=0)
            found = (one.state for one in self._history.final.recoveries if one.subject == subject)
            states[name] = next(found)
        return states

    async def _recount(self) -> None:
        """Compare the inventory at the end with the journal."""
        leaving = self._leaving
        assert leaving is not None
        await trio.sleep(WRITTEN_S)
        left = self.lives[-1].left
        assert left is not None
        state = (await self._states("the end of its drain", leaving))[leaving.place]
        for queue, (live, _) in state["queues"].items():
            # Messages that are not durable are in no journal.
            leaving.left(
                f"messages of {queue} that are in no inventory", max(0, len(live) - left.messages.get(queue, 0))
            )
            if queue in DRAINED:
                leaving.left(f"messages of {queue} after its drain", len(live))
        leaving.left(
            "messages for other nodes after its drain", sum(len(rows) for _, rows in state["forwarding"].values())
        )
        leaving.left("prepared transactions that are in no inventory", len(state["prepared"]) - left.prepared)
        addresses = leaving.serving_core.router.addresses
        for address, count in state["ids"].items():
            # The recount knows no settings: it finds ids that have left the window, and are not deleted yet.
            known = min(count, addresses[address].duplicates.capacity)
            leaving.left(f"ids of {address} that are in no inventory", known - left.ids.get(address, 0))

    async def judge(self) -> None:
        """Receive the transferred messages, once and in order; a closed node has taken nothing in.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        leaving, target = self._leaving, self._target
        assert leaving is not None and target is not None
        for queue, uids in self._sent.items():
            size = LARGE_BYTES if queue == LARGE else 0
            sent = [body_of(uid, size) for uid in uids]
            deliveries = await received(self._history, target, queue, len(uids))
            got = [one.body for one in deliveries]
            origin = MessageOrigin(SOURCE, SOURCE, "moved") if queue == MOVED else None
            leaving.left(f"messages of {queue} with a wrong origin", sum(one.origin != origin for one in deliveries))
            leaving.left(f"messages of {queue} lost, doubled or out of order", sum(map(bytes.__ne__, sent, got)))
            leaving.left(f"messages of {queue} too few or too many", abs(len(sent) - len(got)))
        starts = self._history.starts.get(leaving.place, [])
        late = 0
        for life in self.lives:
            closed_s = life.closed_s
            assert closed_s is not None
            ended_s = min((at_s for at_s in starts if at_s > closed_s), default=float("inf"))
            late += sum(
                send.node == leaving.place and send.outcome == "done" and closed_s < send.invoked_s < ended_s
                for send in self._history.sends.values()
            )
        leaving.left("messages taken in after its close", late)


def _not_linked(node: MeshNode, others: list[MeshNode]) -> int:
    return sum(other.states().get(node.place) != "linked" for other in others)
