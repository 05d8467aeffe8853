"""Message groups in the simulated mesh: senders at all nodes use the same groups, and each has one consumer at a time.

Whoever gets a message of a group looks at the other nodes: none may have given one to a consumer that holds it still.
At the end all nodes send to the same groups at once, and each group has to come out at one node, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from meshq.client import Delivery
from meshq.cluster.grouping import Grouping
from meshq.cluster.grouping._arbiter_machine import arbiter_of
from meshq.message import Message
from meshq.testing import Swarm
from meshq.testing.history._history import History, body_of
from qa.mesh.bursts.flood import Burst, Flood
from qa.mesh.node import MeshNode
from qa.simulation.workload import SETTINGS, Actor, Dial, Scene
from qa.simulation.workload_receive import Queues, Receiver

#: A queue that every node has, with a consumer at each.
PINNED: Final = "pinned"
#: So many that one arbiter often has more of them than the nodes may keep idle pins.
GROUPS: Final = ("red", "green", "blue", "black", "white", "grey")
#: Some messages at a time, to all groups in turn.
GROUPED_BURST: Final = Burst(PINNED, size=5, body_bytes=0, durable_share=1.0, groups=GROUPS)
GROUP_SIGHTS: Final = (
    "groups",
    "group_pinned",
    "group_remembered",
    "group_released",
    "group_crowded",
    "group_counted",
    "group_given_up",
    "group_waited",
)
#: Seconds after which an idle pin is released, in some of the seeds.
TIMEOUTS_S: Final = (2.0, math.inf, math.inf)
#: Idle pins that a node keeps.
PINS_MAX: Final = (1, 65_536)
#: Messages of each node to each group at the end, and seconds within which these come.
LAST: Final = 4
LAST_S: Final = 30.0
PAUSE_S: Final = 0.1


class MeshGroups:
    """The groups of one seed."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._on = swarm.on("mesh.groups")
        self.queues = [PINNED] if self._on else []
        #: Seconds after which a pin is released that nobody uses.
        rng = swarm.rng("mesh/groups")
        self.timeout_s: float = rng.choice(TIMEOUTS_S)
        #: Pins that a node keeps, also if nobody uses these.
        self.pins_max: int = rng.choice(PINS_MAX)
        #: The nodes, once they are made.
        self.nodes: list[MeshNode] = []
        #: Whether all nodes have met; from then on no group may be at two of them.
        self.met: bool = False
        #: Whether a node has begun to leave in peace: meanwhile each has its groups alone, and what it holds then.
        self.alone: bool = False
        # The lives whose warnings are heard, and by place the groups that these have given up to another node; ordered
        # sets.
        self._heard: dict[Grouping, None] = {}
        self._yielded: dict[tuple[str, str], None] = {}
        for sight in GROUP_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        swarm.count("seen.groups", int(self._on))

    def known(self, history: History) -> None:
        """Tell the history the queue whose messages move."""
        history.expected.moves(*self.queues)
        for queue in self.queues:
            # The pin goes on when the consumer has left.
            history.expected.pins_groups(queue)

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the sender and the receiver of a node."""
        if not self._on:
            return []
        receiver, sender = f"pinned-receiver-{node}", f"pinned-sender-{node}"
        places = _Watched((PINNED,), node, self)
        return [
            Receiver(scene, receiver, self._swarm.rng(f"actor/{receiver}"), dial, places),
            # Before the nodes have met each has groups of its own.
            Flood(scene, sender, self._swarm.rng(f"actor/{sender}"), dial, GROUPED_BURST, may_send=lambda: self.met),
        ]

    def came(self, place: str, group: str) -> None:
        """Look at the other nodes when a message of a group has come at one."""
        here = next(node for node in self.nodes if node.place == place)
        if self.alone or not _holds(here, group):
            # Its session has ended meanwhile, and with it what it held.
            return
        for other in self.nodes:
            if other is here or self._yields(other, group):
                continue
            if _holds(other, group) and self._agreed(here, other, group):
                here.left(f"messages of the group {group} at two nodes at once, the other is {other.place}", 1)

    def _yields(self, node: MeshNode, group: str) -> bool:
        """Whether a node has given a group up that another one had, too, since they met, and its consumer still has
        messages from before."""
        name = node.place, group
        if name in self._yielded and (not _holds(node, group) or _is_pinned(node, group)):
            del self._yielded[name]
        return name in self._yielded

    def _hear(self, node: MeshNode, grouping: Grouping) -> None:
        """Hear which groups a life of a node gives up."""
        say = grouping._warn

        def warned(event: str, text: str, about: str) -> None:
            if event == "group_consumed_twice":
                self._yielded[node.place, about.partition(" ")[2]] = None
            say(event, text, about)

        grouping._warn = warned
        self._heard[grouping] = None

    def _agreed(self, here: MeshNode, other: MeshNode, group: str) -> bool:
        """Whether two nodes have met each other, and the one that says which of them has a group."""
        grouping = grouping_of(here)
        if grouping is None or not _have_met(here, other):
            return False
        chosen = arbiter_of((PINNED, group), grouping.arbiter.members)
        arbiters = [one for one in self.nodes if one.core is not None and one.core.settings.node_id.hex() == chosen]
        return any(all(one is arbiter or _have_met(one, arbiter) for one in (here, other)) for arbiter in arbiters)

    async def watch(self) -> None:
        """Count the deeds of the arbiters, until the end.  Checkpoint: always.  Cancellation: ends it."""
        before: dict[tuple[str, int, str], int] = {}
        while self._on:
            self.met = self.met or all(
                _have_met(one, other) for one in self.nodes for other in self.nodes if one is not other
            )
            for node in self.nodes:
                grouping = grouping_of(node)
                if grouping is None:
                    continue
                if grouping not in self._heard:
                    self._hear(node, grouping)
                self.alone = self.alone or grouping.leaving
                for sight, count in grouping.counts().items():
                    key = node.place, node.node.life.number, sight
                    self._swarm.count(f"seen.group_{sight}", max(0, count - before.get(key, 0)))
                    before[key] = count
            await trio.sleep(PAUSE_S)

    def _decided(self) -> list[str]:
        """The groups whose arbiter is there, and their holder if they have one: the others wait for a node that is
        away."""
        known = [grouping for node in self.nodes if (grouping := grouping_of(node)) is not None]
        held_up = without_arbiter(self.nodes, PINNED, GROUPS)
        holders = {group: {one.arbiter.pins.get((PINNED, group)) for one in known} - {None} for group in GROUPS}
        there = ids_of(self.nodes)
        return [group for group in GROUPS if group not in held_up and holders[group] <= there]

    def drained(self) -> list[str]:
        """The queues that consumers have to empty."""
        return self.queues if self._on and self._decided() == [*GROUPS] else []

    def _is_stale(self, node: MeshNode, group: str) -> bool:
        """Whether a node takes another one for the holder of a group that has given the pin up.

        The first messages that go there may come behind those that are sent once the node knows better.
        """
        holder = node.serving_core.router.pins.elsewhere.get((PINNED, group))
        others = {one.serving_core.settings.node_id.hex(): one for one in self.nodes if one.active}
        return holder in others and (PINNED, group) not in others[holder].serving_core.router.pins.held

    async def judge(self, scene: Scene) -> None:
        """Send to the same groups from all nodes at once, and receive at all: a group comes out at one, in order.  The
        clients of the workload are dead.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        nodes = [node for node in self.nodes if node.active]
        if not self._on:
            return
        # The sessions of the workload's receivers end.
        await trio.sleep(SETTINGS["connection_ttl"] * 2)
        got: dict[str, list[tuple[str, bytes, float]]] = {}
        sent: dict[str, dict[str, list[bytes]]] = {group: {} for group in self._decided()}
        async with trio.open_nursery() as consumers:
            for node in nodes:
                consumers.start_soon(_take, scene.history, node, got)
            await trio.sleep(PAUSE_S)
            stale = {(node.place, group) for node in nodes for group in sent if self._is_stale(node, group)}
            async with trio.open_nursery() as senders:
                for node in nodes:
                    senders.start_soon(_send, scene, node, sent)
            with trio.move_on_after(LAST_S):
                while not _last(sent) <= {body for came in got.values() for _, body, _ in came}:  # noqa: ASYNC110 - a test polls
                    await trio.sleep(PAUSE_S)
            await trio.sleep(PAUSE_S)
            consumers.cancel_scope.cancel()
        for group, by_node in sent.items():
            came = [one for one in got.get(group, []) if one[1] in _last(sent)]
            nodes[0].left(f"nodes too many that had the group {group}", too_many(came, self.timeout_s))
            wrong = []
            for place, bodies in by_node.items():
                theirs = [body for _, body, _ in came if body in bodies]
                ordered = sorted if (place, group) in stale else list
                if ordered(theirs) != ordered(bodies):
                    wrong.append(place)
            nodes[0].left(f"senders whose messages of the group {group} are lost, doubled or out of order", len(wrong))


def too_many(came: Sequence[tuple[str, bytes, float]], timeout_s: float) -> int:
    """Count the nodes that had a group while another one had it: a pin that is idle for long enough may go on.

    ``timeout_s``: after a pause of this length it may have gone on.
    """
    found, places, last_s = 0, set[str](), -math.inf
    for place, _, at_s in came:
        if at_s - last_s >= timeout_s:
            found, places = found + max(0, len(places) - 1), set()
        places.add(place)
        last_s = at_s
    return found + max(0, len(places) - 1)


def _last(sent: dict[str, dict[str, list[bytes]]]) -> set[bytes]:
    return {body for by_node in sent.values() for bodies in by_node.values() for body in bodies}


class _Watched(Queues):
    """The queue at a node; looks at each message that comes from it."""

    def __init__(self, names: tuple[str, ...], node: str, groups: MeshGroups) -> None:
        super().__init__(names, node)
        self._place = node
        self._groups = groups

    def handed(self, delivery: Delivery, number: int) -> None:
        """Look at a message that has come."""
        super().handed(delivery, number)
        if delivery.group is not None:
            self._groups.came(self._place, delivery.group)


def grouping_of(node: MeshNode) -> Grouping | None:
    """The part of a node that pins groups; None: the node is not there."""
    cluster = node.cluster if node.active else None
    return getattr(cluster, "_grouping", None) if cluster is not None else None


def ids_of(nodes: Iterable[MeshNode]) -> set[str]:
    """The ids of those nodes that are there."""
    return {node.serving_core.settings.node_id.hex() for node in nodes if node.active}


def without_arbiter(nodes: Sequence[MeshNode], queue: str, groups: Iterable[str]) -> list[str]:
    """The groups of a queue whose arbiter is away, as a node that is there sees it.

    A node that does not hold such a group has to wait, also if it was given the pin at another one's request.
    """
    there = ids_of(nodes)
    members = [grouping.arbiter.members for node in nodes if (grouping := grouping_of(node)) is not None]
    return [group for group in groups if not {arbiter_of((queue, group), known) for known in members} <= there]


def _holds(node: MeshNode, group: str) -> bool:
    """Whether a consumer of a node holds messages of a group."""
    core = node.core
    if core is None or not core.router.pins.active:
        # While a node leaves each has its groups alone.
        return False
    queue = core.router.queues.get(PINNED)
    known = queue.grouped.table.get(group) if queue is not None and queue.grouped is not None else None
    return known is not None and known.unacked > 0


def _is_pinned(node: MeshNode, group: str) -> bool:
    """Whether a node has the pin of a group."""
    return node.core is not None and (PINNED, group) in node.core.router.pins.held


def _have_met(first: MeshNode, second: MeshNode) -> bool:
    """Whether two nodes know each other, and all nodes that they see know their groups and the same members."""
    return _knows(first, second) and _knows(second, first)


def _knows(node: MeshNode, other: MeshNode) -> bool:
    grouping, core = grouping_of(node), other.core
    if grouping is None or core is None:
        return False
    known = core.settings.node_id.hex()
    return known in grouping.arbiter.members and grouping.arbiter.has_heard(known) and grouping.settled


async def _send(scene: Scene, node: MeshNode, sent: dict[str, dict[str, list[bytes]]]) -> None:
    async with node.client() as client:
        for _ in range(LAST):
            for group in sent:
                uid = scene.uid()
                sent[group].setdefault(node.place, []).append(body_of(uid))
                op = scene.history.sent(f"last@{node.place}", PINNED, uid, node=node.place)
                await client.send_many(PINNED, [Message(body_of(uid), group=group)])
                scene.history.send_ok(op)


async def _take(history: History, node: MeshNode, got: dict[str, list[tuple[str, bytes, float]]]) -> None:
    name = f"finder@{node.place}"
    async with node.client() as client, client.consumer(PINNED) as consumer:
        while True:
            batch = await consumer.receive_many(7)
            numbers = [
                history.delivered(
                    name,
                    name,
                    PINNED,
                    one.body,
                    sequence=one.sequence,
                    node=node.place,
                    redelivered=one.redelivered,
                    delivery_count=one.delivery_count,
                    # A message waits for the pin of its group, and those of other groups pass it.
                    line=(one.priority, one.group),
                )
                for one in batch
            ]
            for one in batch:
                got.setdefault(one.group or "", []).append((node.place, one.body, trio.current_time()))
            op = history.settling(numbers)
            await consumer.ack(*batch, confirm=True)
            history.settle_ok(op)
