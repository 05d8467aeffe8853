"""A node of the simulated mesh that drains before it goes for good: the crashes meanwhile, and the accounts of both."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from meshq.abc import TransferInventory
from meshq.errors import MeshqError, NotFoundError
from meshq.message import Message, MessageOrigin
from meshq.testing import MemoryNetwork, Simulation
from meshq.testing.history._history import body_of, queue_of
from qa.mesh.accounts import standing
from qa.mesh.membership import NODES, URLS
from qa.mesh.node import MeshNode
from qa.mesh.sent_away import OPEN, UNACKED, UNACKED_MESSAGES, SentAway
from qa.mesh.stranded import received
from qa.mesh.undecided import HELD, SENT, UndecidedTransactions, is_foreign
from qa.simulation.accounts import Recount
from qa.simulation.recovery import record_recoveries
from qa.simulation.workload import CONSUMED, Scene
from qa.simulation.workload_two_phase import VerdictLog

#: Queues of every node that have no consumer before the end: small messages, more than two runs; large ones; and
#: messages with properties and a time to live; messages that were moved there from a queue of their own; some that came
#: back; some that are not due; and copies in the queue of a topic that no other node has.
SMALL: Final = "drained"
LARGE: Final = "drained.large"
OTHERS: Final = "drained.others"
MOVED: Final = "drained.moved"
SOURCE: Final = "drained.source"
RETURNED: Final = "drained.returned"
LATER: Final = "drained.later"
COPIES: Final = "drained.copies"
#: A durable queue of the node that has no messages, and no other node.
QUIET: Final = "drained.quiet"
DRAINED: Final = {SMALL: 600, LARGE: 12, OTHERS: 60, MOVED: 60, RETURNED: 60, LATER: 60, COPIES: 60}
DRAINED[UNACKED] = UNACKED_MESSAGES
FURNISHED: Final = (*(queue for queue in DRAINED if queue != COPIES), SOURCE, HELD, SENT, OPEN)
#: Seconds for which the faults of a drain wait for its client to be told where to go, in some seeds.
TOLD_S: Final = 1.0
TOLD_SHARE: Final = 0.7
#: How many of them came back, and after how many seconds the others are due.
BACK: Final = 20
DELAY_S: Final = 15.0
LARGE_BYTES: Final = 20_000
#: More than clocks are set by.
TTL_S: Final = 100_000.0
#: Crashes and lost links while a node drains, at most.
FAULTS_MAX: Final = 4
#: The share of seeds in which the target is named by a URL that no cluster connection links, and dialed for the drain.
DIALED_SHARE: Final = 0.4
#: How the store-and-forward queues of such links are called.
DIALED: Final = "$meshq.cluster.$handover."
#: The calls of a disk within which a node dies, and seconds after which it is killed without.
FUSE_CALLS: Final = 60
FUSE_S: Final = 1.0
#: Seconds in which a drain comes to its end when nothing fails any more, and in which the others see the node again.
DRAINED_S: Final = 90.0
SEEN_S: Final = 60.0
#: Seconds before a drain that was cut is begun again.
AGAIN_S: Final = 0.05
#: Seconds in which acknowledgements are written.
WRITTEN_S: Final = 1.0
DRAIN_SIGHTS: Final = (
    "drained",
    "drain_crashed_leaving",
    "drain_crashed_target",
    "drain_cut",
    "drain_dialed",
    "drain_under_way",
    "drained_ids",
    "drained_there",
    "drained_queues",
    "drained_transactions",
    "drained_transactions_of_receivers",
)


@attrs.define(eq=False)
class _Life:
    """The drain of one life of the node that leaves."""

    #: When it had begun, and the node took nothing in.
    closed_s: float
    #: What is left after its last step, and whether it has come to its end.
    left: TransferInventory | None = None
    ended: bool = False


class MeshDeparture:
    """The drain of the node that goes for good, to one of the others."""

    def __init__(self, simulation: Simulation, scene: Scene) -> None:
        assert isinstance(simulation.fabric, MemoryNetwork)
        self._simulation = simulation
        self._fabric = simulation.fabric
        self._scene = scene
        self._history = scene.history
        self._rng = simulation.swarm.rng("mesh/departure")
        self._dialed = simulation.swarm.rng("mesh/dialed target").random() < DIALED_SHARE
        self._targets = {name: self._rng.choice([other for other in NODES if other != name]) for name in NODES}
        #: The lives of the node in which it took nothing in.
        self.lives: list[_Life] = []
        # What was sent to the queues that must be empty here and whole there, in order.
        self._sent: dict[str, list[int]] = {}
        self._sent_away = SentAway(simulation, scene)
        # How many messages came back from a consumer.
        self._returned = 0
        # The node that leaves, and its target; with the ids of both.
        self._leaving: MeshNode | None = None
        self._target: MeshNode | None = None
        self._identities: dict[str, str] = {}
        self._undecided: UndecidedTransactions
        for queue in (*CONSUMED, HELD):
            self._history.expected.redistributes(queue)
        # Parts of a run whose ways took different times are due at different times.
        self._history.expected.moves(LATER)
        for sight in DRAIN_SIGHTS:
            self.count(sight, 0)

    def count(self, sight: str, number: int = 1) -> None:
        """Count something that the seeds have to have met."""
        self._simulation.swarm.count(f"seen.{sight}", number)

    def undertake(self, verdict_logs: dict[str, VerdictLog]) -> None:
        """Take the transactions of receivers along; ``verdict_logs``: these, by node."""
        rng = self._simulation.swarm.rng("mesh/undecided")
        self._undecided = UndecidedTransactions(self._scene, rng, verdict_logs, self.count)
        for name, log in verdict_logs.items():
            others = [other for place, other in verdict_logs.items() if place != name]
            log.foreign = functools.partial(is_foreign, others)

    async def _drain(self, node: MeshNode, target: MeshNode) -> None:
        """Drain each life of the node, until cancelled."""
        while True:
            await node.serving()
            process = node.node.life
            node.node.spawn(self._drain_life, node, target)
            while not process.dead:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(AGAIN_S)

    async def _drain_life(self, node: MeshNode, target: MeshNode) -> None:
        """Drain a node in its own process, and again after each error, until a drain has come to its end."""
        broker = node.broker
        assert broker is not None
        life: _Life | None = None
        dialed = 0
        while life is None or not life.ended:
            moved = 0
            try:
                async with broker.drain(self._url_of(target)) as drain:
                    if life is None:
                        life = _Life(trio.current_time())
                        self.lives.append(life)
                    async for progress in drain:
                        self.count("drained", progress.moved - moved)
                        moved = progress.moved
                        dialed += self._count_dialed(node, dialed)
                departure = broker.cluster("mesh").departure
                assert departure is not None and life is not None
                life.left = departure.broker.transfer.inventory()
                life.ended = True
            except MeshqError as error:
                self._history.note(f"the drain of {node.place} has ended: {error}")
            await trio.sleep(AGAIN_S)

    def _count_dialed(self, node: MeshNode, before: int) -> int:
        """Count the messages that links which were dialed for the drain have been given, beyond ``before``."""
        queues = node.serving_core.router.queues.values()
        more = sum(queue.counts.added for queue in queues if queue.name.startswith(DIALED)) - before
        self.count("drain_dialed", max(0, more))
        return more

    def _url_of(self, target: MeshNode) -> str:
        """Return the URL of the target that its cluster connection has, or the same place as another URL."""
        place, _, query = URLS[target.place].partition("?")
        return f"({place})?{query}" if self._dialed else URLS[target.place]

    async def prepare(self, node: MeshNode, others: list[MeshNode]) -> None:
        """Drain a node, among crashes of the node and its target, and compare the inventory with the journal.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        target = next(other for other in others if other.place == self._targets[node.place])
        self._leaving, self._target = node, target
        await target.serving()
        self._identities = {one.serving_core.settings.node_id.hex(): one.place for one in (node, target)}
        await self._fill(node)
        await self._sent_away.begin(node)
        self._history.note(f"{node.place} drains to {target.place}")
        self._history.expected.hands_over(node.place, target.place)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain, node, target)
            if self._rng.random() < TOLD_SHARE:
                with trio.move_on_after(TOLD_S):
                    while not self._sent_away.told:  # noqa: ASYNC110 - nobody tells
                        await trio.sleep(0.01)
            for _ in range(self._rng.randrange(1, FAULTS_MAX + 1)):
                await trio.sleep(self._rng.choice((0.0, 0.05, 0.2)) * self._rng.random())
                await self._fail()
            await node.serving()
            await target.serving()
            with trio.move_on_after(DRAINED_S):
                while not (self.lives and self.lives[-1].ended and node.active):  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(AGAIN_S)
            nursery.cancel_scope.cancel()
        node.left("drains without an end", int(not (self.lives and self.lives[-1].ended)))
        await self._recount()
        self._remembered()
        self._taken_in_late()
        await self._undecided.decide(node, target)
        async with target.client() as client:
            # Made there without messages; each node is to have one queue on that address.
            with suppress(NotFoundError):
                await client.delete_queue(node.spread)
        with trio.move_on_after(SEEN_S):
            # They hear how far their messages are stored before the node goes: none is in doubt then.
            while _not_linked(node, others):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.1)
        node.left("nodes that do not see it again", _not_linked(node, others))

    async def _fill(self, node: MeshNode) -> None:
        """Send messages to the queues without a consumer."""
        async with node.client() as client:
            await client.create_queue(COPIES, address=COPIES, routing="multicast")
            await client.create_queue(QUIET, address=QUIET, routing="multicast", filter="kind = 1")
            for queue, messages in DRAINED.items():
                uids = self._sent[queue] = [self._scene.uid() for _ in range(messages)]
                ops = [self._history.sent(f"filler@{node.place}", queue, uid, node=node.place) for uid in uids]
                bodies = [body_of(uid, LARGE_BYTES if queue == LARGE else 0) for uid in uids]
                about: dict[str, Any] = {"ttl": TTL_S, "properties": {"colour": "red"}} if queue == OTHERS else {}
                if queue == LATER:
                    about = {"delay": DELAY_S}
                await client.send_many(SOURCE if queue == MOVED else queue, [Message(body, **about) for body in bodies])
                for op in ops:
                    self._history.send_ok(op)
            await client.move_messages(SOURCE, MOVED)
            async with client.consumer(RETURNED, window=BACK) as consumer:
                while not (batch := await consumer.receive_many(BACK, timeout=1.0)):
                    pass
                await consumer.nack(*batch)
                self._returned = len(batch)
            await self._undecided.prepare(node, client)

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
            if queue_of(place) in (*DRAINED, HELD):
                found.update(uid for uid, _ in live)
                self.count("drain_under_way", int(">" in place))
        sent = {uid for uids in (*self._sent.values(), self._undecided.sent) for uid in uids}
        leaving.left(f"transactions decidable twice at {when}", self._undecided.twice(leaving, target))
        leaving.left(f"messages lost at {when}", len(sent - found.keys()))
        leaving.left(f"messages doubled at {when}", sum(number > 1 for number in found.values()))

    async def _states(self, when: str, *nodes: MeshNode) -> dict[str, Any]:
        """Recount the disks of nodes, all at one moment."""
        disks = {node.place: node.node.disk.copy() for node in nodes}
        states: dict[str, Any] = {}
        for name, disk in disks.items():
            subject = f"the store of {name} at {when}"
            await record_recoveries(self._simulation, self._history, subject, disk, Recount(), crashes=0)
            found = (one.state for one in self._history.final.recoveries if one.subject == subject)
            states[name] = next(found)
        return states

    async def _recount(self) -> None:
        """Compare the inventory at the end with the journal."""
        leaving = self._leaving
        assert leaving is not None
        await trio.sleep(WRITTEN_S)
        left = self.lives[-1].left if self.lives else None
        if left is None:
            # Its drain had no end, which is told already.
            return
        leaving.left("contents in the inventory after its drain", int(not left.empty))
        state = (await self._states("the end of its drain", leaving))[leaving.place]
        for queue, (live, _) in state["queues"].items():
            # Messages that are not durable are in no journal.
            leaving.left(
                f"messages of {queue} that are in no inventory", max(0, len(live) - left.messages.get(queue, 0))
            )
            if queue in (*DRAINED, HELD):
                leaving.left(f"messages of {queue} after its drain", len(live))
        leaving.left(
            "messages for other nodes after its drain", sum(len(rows) for _, rows in state["forwarding"].values())
        )
        leaving.left("prepared transactions that are in no inventory", len(state["prepared"]) - left.prepared)
        leaving.left("ids after its drain", sum(left.ids.values()))

    def _remembered(self) -> None:
        """Compare the duplicate ids that both nodes know."""
        leaving, target = self._leaving, self._target
        assert leaving is not None and target is not None
        there = target.serving_core.router.addresses
        for name, address in leaving.serving_core.router.addresses.items():
            part = address.duplicates.known()
            window = there[name].duplicates if name in there else None
            fresh = part if window is None else window.fresh_rows(part)
            self.count("drained_ids", len(part))
            # A node whose window is small has newer ones by now.
            aged = window is not None and len(window) >= window.capacity
            leaving.left(f"ids of {name} that were left behind", 0 if fresh is None or aged else len(fresh))

    async def judge(self, nodes: list[MeshNode]) -> None:
        """Receive the transferred messages, once and in order; a closed node has taken nothing in.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        leaving, target = self._leaving, self._target
        assert leaving is not None and target is not None
        await self._sent_away.judge(leaving, nodes)
        for queue, uids in self._sent.items():
            size = LARGE_BYTES if queue == LARGE else 0
            sent = [body_of(uid, size) for uid in uids]
            deliveries = await received(self._history, target, queue, len(uids))
            again = sum(one.delivery_count > 1 for one in deliveries)
            if queue == RETURNED:
                leaving.left("messages that came back, and whose count was left behind", max(0, self._returned - again))
            got = [one.body for one in deliveries]
            self.count("drained_there", len(got))
            if queue == LATER:
                sent, got = sorted(sent), sorted(got)
            origin = MessageOrigin(SOURCE, SOURCE, "moved") if queue == MOVED else None
            leaving.left(f"messages of {queue} with a wrong origin", sum(one.origin != origin for one in deliveries))
            leaving.left(f"messages of {queue} lost, doubled or out of order", sum(map(bytes.__ne__, sent, got)))
            leaving.left(f"messages of {queue} too few or too many", abs(len(sent) - len(got)))
        await self._undecided.judge(target)
        made = target.serving_core.router.queues.get(QUIET)
        as_it_was = made is not None and made.durable and made.spec.filter_text == "kind = 1"
        self.count("drained_queues", int(as_it_was))
        leaving.left("queues without messages that are not at the target", int(not as_it_was))
        self._taken_in_late()

    def _taken_in_late(self) -> None:
        """A life of the node that leaves has taken nothing in after its close."""
        leaving = self._leaving
        assert leaving is not None
        starts = self._history.starts.get(leaving.place, [])
        late = 0
        for life in self.lives:
            closed_s = life.closed_s
            ended_s = min((at_s for at_s in starts if at_s > closed_s), default=float("inf"))
            # A client that tries again may be served by the next life, before that drains, too.
            late += sum(
                closed_s < send.invoked_s and send.ended_s is not None and send.ended_s < ended_s
                for send in self._history.sends.values()
                if send.node == leaving.place and send.outcome == "done"
            )
        leaving.left("messages taken in after its close", late)


def _not_linked(node: MeshNode, others: list[MeshNode]) -> int:
    return sum(other.states().get(node.place) != "linked" for other in others)
