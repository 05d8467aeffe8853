"""A node of the model, and its lives, each with the real parts that decide about pins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import attrs
import trio

from meshq.broker import ClusteredGroups
from meshq.broker.catalog._distribution_plan import ClusteredQueue
from meshq.broker.catalog._kept_pins import KeptPins
from meshq.broker.catalog._pins_machine import PinsMachine
from meshq.broker.ingress._group_places import GroupPlaces
from meshq.broker.records._row_options import RowOptions
from meshq.cluster import ClusterSettings
from meshq.cluster.grouping import Grouping
from meshq.cluster.grouping._arbiter_machine import HOLD, KNOW, LOST, MOVE, WANT, arbiter_of
from meshq.cluster.grouping._letter import read
from qa.grouping_model.clockwork import Clockwork
from qa.grouping_model.fates import Fates
from qa.grouping_model.journal import ModelJournal
from qa.grouping_model.queues import QUEUE, ModelForward, ModelMessage, ModelQueue, Row

#: Messages of one group that a consumer has at once.
WINDOW: Final = 2
#: Seconds that a consumer has a message, and that a slow one has one in so many.
WORK_S: Final = 0.1
SLOW_WORK_S: Final = 4.0
SLOW: Final = 10
#: Seconds within which something is noticed on the same node.
SOON_S: Final = 0.01


class ModelNode:
    """A node, over all its lives."""

    def __init__(self, clockwork: Clockwork, place: str) -> None:
        self.place = place
        self.node_id: bytes = clockwork.rng(f"id/{place}").randbytes(16)
        self.journal = ModelJournal(clockwork, place)
        self.queue: ModelQueue | None = None
        #: The nodes that were linked, by place, with whether each had left.
        self.known: dict[str, bool] = {}
        #: The messages that were stored for other nodes, by place.
        self.forwards: dict[str, ModelForward] = {}
        #: None: it is not there.
        self.life: NodeLife | None = None
        self.lives: int = 0
        #: It has left for good.
        self.gone: bool = False


@attrs.define
class OwnWord:
    """The description of a node by itself."""

    leaving: bool = False


@attrs.define
class Watched:
    """The notes about a life for the checks."""

    #: Pins that it gives up, since two nodes had them.
    twice: set[tuple[str, str]] = attrs.field(factory=set)
    #: Nodes that it took for gone once, and pins from when groups were not pinned: others could not know of these.
    dropped: set[str] = attrs.field(factory=set)
    alone: set[tuple[str, str]] = attrs.field(factory=set)
    #: The members at the time when it got a pin.
    got: dict[tuple[str, str], frozenset[str]] = attrs.field(factory=dict)
    #: Names of which the letter that is heard now says who has them.
    passed_on: set[tuple[str, str]] = attrs.field(factory=set)


class WatchedGroups(ClusteredGroups):
    """The groups of a node, with checks of each answer."""

    def __init__(self, core: Any, life: NodeLife) -> None:
        super().__init__(core)
        self._life = life
        # By name: the steps at which the arbiter was asked, and after which it has said who holds it.
        self._asked: dict[tuple[str, str], int] = {}
        self.said: dict[tuple[str, str], tuple[int, str]] = {}
        self._members: set[str] = set()
        # Pins that were told since they were kept.
        self._given: set[tuple[str, str]] = set()

    def ask(self, queue: str, group: str) -> None:
        super().ask(queue, group)
        self._asked[queue, group] = self._life.clockwork.step

    def told(self, queue: str, group: str, holder: str) -> None:
        name = queue, group
        if name in self._asked:
            self.said[name] = self._asked.pop(name), holder
        unacked, held = self._life.unacked(group), name in self._pins.held
        super().told(queue, group, holder)
        if not held:
            self._life.watched.got[name] = self._life.grouping.arbiter.members
            if arbiter_of(name, self._life.watched.got[name]) == self._pins.own:
                self._given.add(name)
        if held and unacked and name not in self._pins.held and name not in self._life.watched.twice:
            self._life.violated("CG4", f"the pin of {group} has gone, of which {unacked} messages are unacked")
        self._life.watched.twice.discard(name)
        if self._life.clockwork.after is not None:
            self._life.clockwork.after()

    def given_up(self) -> Sequence[tuple[str, str]]:
        found = super().given_up()
        self._check_idle(found, "given up")
        return found

    def period_over(self, idle_after: float, pins_max: int) -> tuple[Sequence[tuple[str, str]], int]:
        idle, crowded = super().period_over(idle_after, pins_max)
        self._check_idle(idle, "released")
        return idle, crowded

    def see(self, members: Collection[str], targets: Collection[str], **about: Any) -> None:
        before = self._pins.active
        super().see(members, targets, **about)
        self._life.watched.dropped |= self._members - set(members)
        self._members = set(members)
        if before != self._pins.active:
            self._life.watched.alone |= self._pins.held.keys()

    def keep(self, queue: str, group: str, node: str | None) -> None:
        super().keep(queue, group, node)
        life, name = self._life, (queue, group)
        # What it gives itself counts at once; what it had before it only claims.
        own = node == self._pins.own and name in self._pins.held and name not in self._given
        self._given.discard(name)
        if node is None or not self._pins.active or own or name in life.watched.passed_on:
            return
        for peer in life.peers:
            other = peer.there.life
            if other is not None and peer.there.node_id.hex() != node and other.keeps(name, life):
                life.violated("CG2", f"it gives the pin of {group} to {node[:8]}, and {other.name} holds it")

    def _check_idle(self, names: Sequence[tuple[str, str]], how: str) -> None:
        for _, group in names:
            if self._life.unacked(group):
                self._life.violated("CG4", f"the pin of {group} is {how} while messages are unacked")


class NodeLife:
    """A life of a node."""

    def __init__(
        self,
        clockwork: Clockwork,
        node: ModelNode,
        settings: ClusterSettings,
        fates: Fates,
        *,
        moves_after_s: float,
    ) -> None:
        node.lives += 1
        self.clockwork = clockwork
        self.node = node
        self.alive = True
        self.name = f"{node.place}{node.lives}"
        self.instance = clockwork.rng(f"life/{self.name}").randbytes(16)
        self._rng = clockwork.rng(f"work/{self.name}")
        self._fates = fates
        self._moves_after_s = moves_after_s
        #: The other nodes as this life sees them, each a ``ModelPeer``.
        self.peers: list[Any] = []
        self.own = OwnWord()
        self.watched = Watched()
        self.pins = PinsMachine()
        self.clustered = ClusteredQueue(QUEUE)
        self.scope = trio.CancelScope()
        self.places: GroupPlaces
        self.groups: WatchedGroups
        self.grouping: Grouping
        self._build(settings)

    def _build(self, settings: ClusterSettings) -> None:
        """Put the real parts of a node together, over the core of the model."""
        router = SimpleNamespace(pins=self.pins, queues={}, addresses={}, demand=self)
        router.addresses[QUEUE] = SimpleNamespace(clustered_queues={QUEUE: self.clustered})
        self.queues: dict[str, Any] = router.queues
        self.places = GroupPlaces(cast(Any, router), lambda queue: False)
        kept = KeptPins(cast(Any, self.node.journal))
        for position, values in self.node.journal.records().items():
            kept.restore(values, position)
        core = SimpleNamespace(
            router=router,
            settings=SimpleNamespace(node_id=self.node.node_id),
            ingress=SimpleNamespace(groups=self.places),
            definitions=SimpleNamespace(pins=kept),
            pending=SimpleNamespace(schedule_dispatch=lambda queue: None, run=self.dispatch),
        )
        self.groups = WatchedGroups(core, self)
        control = SimpleNamespace(node_id=self.node.node_id, instance=self.instance)
        broker, topology = SimpleNamespace(groups=self.groups, control=control), SimpleNamespace(own=self.own)
        self.grouping = Grouping(
            settings, cast(Any, broker), cast(Any, topology), lambda: cast(Any, self.peers), self._warn
        )
        self._kept = kept

    def _warn(self, event: str, text: str, about: str) -> None:
        if event == "group_consumed_twice":
            queue, _, group = about.partition(" ")
            self.watched.twice.add((queue, group))
            self.clockwork.count("seen.group_yielded")
        self.note(f"says {event}: {text}")

    def note(self, what: str) -> None:
        """Add to the story."""
        self.clockwork.note(f"{self.name} {what}")

    def violated(self, checker: str, what: str) -> None:
        """Say that a promise is broken."""
        self.clockwork.violated(checker, f"{self.name}: {what}")

    def keeps(self, name: tuple[str, str], arbiter: NodeLife) -> bool:
        """Whether this node holds a pin that its arbiter must not give to another one.

        It may if this one has gone on without it since it was heard, or has the pin from a node that is gone: then it
        could not know.
        """
        if not self.pins.active or name not in self.pins.held or name in self.watched.alone:
            return False
        members, decides = self.grouping.arbiter.members, arbiter.node.node_id.hex()
        own, machine = self.node.node_id.hex(), arbiter.grouping.arbiter
        if own not in machine.members or decides not in members or arbiter_of(name, members) != decides:
            return False
        heard = own in machine._introduced and machine._letters[own][0][-1] == self.instance.hex()
        giver = arbiter_of(name, self.watched.got.get(name, members))
        return not (heard and {decides, giver} & self.watched.dropped)

    async def run(self) -> None:
        """Ask and answer until the life ends.  Checkpoint: always.  Cancellation: ends it."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                self.grouping.begin(nursery)
                await trio.sleep_forever()

    def end(self) -> None:
        """Be dead from now on."""
        self.alive = False
        self.scope.cancel()
        if self.node.queue is not None:
            roster = self.node.queue.roster
            roster.claim = roster.may_offer = None
            self.node.queue.consumer_leaves()

    # -- its queue

    def has_queue(self) -> None:
        """Serve the queue of the node."""
        queue = self.node.queue
        self.clustered.local = cast(Any, queue)
        self.queues.pop(QUEUE, None)
        if queue is not None:
            self.queues[QUEUE] = queue
            queue.roster.may_offer = lambda group: self.pins.may_offer(QUEUE, QUEUE, group)
            queue.roster.claim = lambda group: self.pins.claim(QUEUE, QUEUE, group)

    def unacked(self, group: str) -> int:
        """How many messages of a group a consumer here has."""
        known = self.node.queue.grouped.table.get(group) if self.node.queue is not None else None
        return known.unacked if known is not None else 0

    def route(self, message: ModelMessage) -> None:
        """Place a message that came from a client, or for a queue that is no more."""
        shares: Sequence[Any] = ()
        if self.pins.active:
            _, shares = self.places.part(QUEUE, [self.clustered], [0], [RowOptions(group=message.group)])
        queue = shares[0].queue if shares else self._dealt()
        if queue is self.node.queue and queue is not None:
            self.take(message)
        elif queue is not None:
            self.forward(cast(ModelForward, queue), message)
        else:
            self.note(f"drops {message.uid} of {message.group}: there is no queue")
            self._fates.deleted([message])

    def _dealt(self) -> Any:
        there = [one for one in self.clustered.remotes if not one.gone]
        wanting = [one.forward for one in there if one.consumers]
        queue = self.node.queue
        if queue is not None and (queue.roster.consumers or not wanting):
            return queue
        return next(iter([*wanting, *(one.forward for one in self.clustered.remotes)]), None)

    def forward(self, queue: ModelForward, message: ModelMessage) -> None:
        """Store a message for another node."""
        queue.append(message)
        for peer in self.peers:
            if peer.forward is queue:
                peer.pump()

    def take(self, message: ModelMessage) -> None:
        """Place a message in the queue here."""
        queue = self.node.queue
        assert queue is not None
        self.note(f"takes {message.uid} of {message.group}")
        queue.place(message, self.clockwork.step)
        self.dispatch()
        self.mobility_changed(QUEUE)

    def dispatch(self) -> None:
        """Give messages to the consumer."""
        queue = self.node.queue
        if queue is None or not self.alive:
            return
        for row in queue.dispatch(WINDOW):
            group = row.message.group
            if not self.pins.may_offer(QUEUE, QUEUE, group) or (
                self.pins.active and (QUEUE, group) not in self.pins.held
            ):
                self.violated("CG1", f"a consumer gets {row.message.uid} of {group}, whose pin is elsewhere")
            self.note(f"gives {row.message.uid} of {group} to its consumer")
            slow = not self.clockwork.calm and not self._rng.randrange(SLOW)
            self.clockwork.at(self._rng.random() * (SLOW_WORK_S if slow else WORK_S), partial(self._acked, row))

    def _acked(self, row: Row) -> None:
        queue = self.node.queue
        if self.alive and queue is not None and queue.settled(row):
            self._fates.consumed(self.node.place, row.message)
            self.dispatch()
            self.mobility_changed(QUEUE)

    def consume(self, *, on: bool) -> None:
        """Let the consumer come or go."""
        queue = self.node.queue
        if queue is None or on == bool(queue.roster.consumers):
            return
        self.note("gets a consumer" if on else "loses its consumer")
        if on:
            queue.roster.consumers["one"] = None
            self.dispatch()
        else:
            queue.consumer_leaves()
        self.mobility_changed(QUEUE)
        self.grouping.note()

    # -- messages that go elsewhere

    def mobility_changed(self, name: str) -> None:
        """Have messages moved soon."""
        self.clockwork.at(self._rng.random() * SOON_S, self.move)
        if self._moves_after_s < 60.0:
            self.clockwork.at(self._moves_after_s, self.redistribute)

    def described(self, *, changed: bool) -> None:
        """Look at the queues of other nodes."""
        self.clustered.remotes = [peer.binding for peer in self.peers if peer.binding is not None]
        if changed and self.alive:
            self.mobility_changed(QUEUE)
            self.grouping.note()

    def move(self) -> None:
        """Move messages of groups to the nodes that hold these."""
        queue = self.node.queue
        if queue is None or not self.alive:
            return
        moved = False
        for group, last in list(self.places.away(cast(Any, queue)).items()):
            known, binding = queue.grouped.table.get(group), self.places.leads(cast(Any, queue), group)
            if known is None or binding is None:
                continue
            if known.unacked:
                self.violated("CG4", f"messages of {group} move while {known.unacked} are unacked")
            while known.waiting and known.waiting[0].number <= last:
                row = known.waiting.popleft()
                self._check_answer(row, binding.forward.name.rpartition(".")[2])
                self.clockwork.count("seen.moved")
                self.note(f"moves {row.message.uid} of {group} to {binding.forward.name[-8:]}")
                self.forward(cast(Any, binding.forward), row.message)
                moved = True
            queue.grouped.settle(known)
        if moved:
            # What stays may go now.
            self.mobility_changed(QUEUE)

    def _check_answer(self, row: Row, holder: str) -> None:
        asked, said = self.groups.said.get((QUEUE, row.message.group), (-1, ""))
        if asked < row.came or said != holder:
            self.violated(
                "CG6",
                f"{row.message.uid} of {row.message.group} came at step {row.came} and goes to {holder}; "
                f"asked at step {asked} the arbiter said {said!r}",
            )

    def redistribute(self) -> None:
        """Give up groups without a consumer."""
        queue = self.node.queue
        if queue is None or not self.alive or not self.pins.active or queue.roster.consumers:
            return
        if any(one.consumers and not one.gone for one in self.clustered.remotes) and not self.places.away(
            cast(Any, queue)
        ):
            for group in list(queue.grouped.table):
                if (QUEUE, group) in self.pins.held:
                    self.clockwork.count("seen.redistributed")
                    self.note(f"lets {group} go, having no consumer")
                self.places.give_up(cast(Any, queue), group)

    # -- letters

    def hear(self, letter: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a letter, and check that the answer is written."""
        names = read(letter["names"])
        self.watched.passed_on = {(one.queue, one.group) for one in names if one.kind in (HOLD, KNOW)}
        answer = self.grouping.hear(letter)
        self.watched.passed_on = set()
        kept = self.node.journal.pins()
        holders = str(answer["holders"]).split(",")
        # The pin of a node without a queue ends after the answer.
        lost = {one.group for one in names if one.kind == LOST}
        for said, holder in zip(names, holders, strict=False):
            if (
                holder
                and said.group not in lost
                and said.kind in (WANT, MOVE, HOLD)
                and kept.get((said.queue, said.group)) != holder
            ):
                self.violated("CG7", f"the answer says that {said.group} is at {holder[:8]}, and that is not written")
        if answer["introduced"] and self.pins.active and letter["complete"]:
            # Who is no member is not heard, and what comes late is not, either.
            node, arbiter = letter["node_id"], self.grouping.arbiter
            heard = node in arbiter.members and arbiter._letters[node][0][-1] == letter["instance"]
            if heard and self.node.journal.lives().get(node) != letter["instance"]:
                self.violated("CG7", f"the answer says that {letter['node_id'][:8]} is introduced: it is not written")
        return answer
