"""The story of a seed: some seconds of faults, a rest in which all has to come out, and one more node that is away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final

import trio

from meshq.cluster import ClusterSettings
from meshq.cluster.grouping import _letter
from meshq.cluster.grouping._correspondence import PAUSE_MAX_S, PAUSE_S
from meshq.testing import Simulation, SimulationResult, run_seed
from meshq.testing.history._history import History
from qa.grouping_model.checks import check_holders, disagreements, leaks, unaffected
from qa.grouping_model.clockwork import Clockwork
from qa.grouping_model.cluster import LEAVING_S, ModelCluster
from qa.grouping_model.queues import ModelMessage
from qa.simulation.scenario import Outcome

GROUPS: Final = ("red", "green", "blue", "white", "black", "brown", "pink", "grey")
#: Nodes of a seed, and the kinds of seeds: how long the faults last, and the mean time between two events.
NODES: Final = (2, 3, 3, 4, 5)
FAULTS_S: Final = 8.0
PAUSES_S: Final = (0.05, 0.2, 0.6)
#: Seconds after which an idle pin is released; pins that may be known; seconds after which a group goes elsewhere.
TIMEOUTS_S: Final = (0.5, 2.0, math.inf, math.inf)
PINS_MAX: Final = (1, 65_536, 65_536)
MOVES_AFTER_S: Final = (0.0, 0.5, 60.0)
#: Seconds in which all has to come out once nothing fails any more.
HEALED_S: Final = 30.0
#: Seconds after which nodes without anything to do are quiet, and for which they have to be.
REST_S: Final = 15.0
QUIET_S: Final = 20.0
#: Seconds of a run beyond which something hangs.
LIMIT_S: Final = 600.0
#: How large a letter may be; the small one has one name.
LETTERS_BYTES: Final = (150, 2_000, 2_000)
#: The place of a node that may join at the end.
SPARE: Final = "z"
KINDS: Final = ("cut", "crash", "leave", "consumer", "queue", "join", "split", "split")


class Story:
    """The story of a seed."""

    def __init__(self, cluster: ModelCluster, rng: Random, settings: ClusterSettings) -> None:
        self.cluster = cluster
        self._clockwork = cluster.clockwork
        self._rng = rng
        self._settings = settings
        swarm = self._clockwork.swarm
        self._kinds = [kind for kind in KINDS if swarm.on(f"grouping.{kind}")]
        self._groups = GROUPS[: rng.choice((2, 4, 8))]
        self._places = [place for place in cluster.nodes if place != SPARE]
        self._late = self._places[-1:] if "join" in self._kinds and len(self._places) > 2 else []

    # -- while things fail

    async def run(self) -> None:
        """Play the seed.  Checkpoint: always.  Cancellation: ends it."""
        cluster, rng = self.cluster, self._rng
        for place in self._places:
            if place not in self._late:
                cluster.start(place)
                cluster.queue(place, on=bool(rng.randrange(5)))
                cluster.consume(place, on=bool(rng.randrange(4)))
        if rng.randrange(2):
            # The nodes meet before anything is sent.
            await trio.sleep(1.0)
        pause_s, share = rng.choice(PAUSES_S), rng.choice((2, 3, 6))
        ends = self._clockwork.now + FAULTS_S
        while self._clockwork.now < ends:
            await trio.sleep(rng.expovariate(1 / pause_s))
            if rng.randrange(share) or not self._kinds:
                cluster.send(rng.choice(self._places), rng.choice(self._groups))
            else:
                self._fault(rng.choice(self._kinds))
        await self._heal()
        await self._judge("after all faults")
        await self._one_away()

    def _fault(self, kind: str) -> None:
        cluster, rng = self.cluster, self._rng
        place = rng.choice(self._places)
        node = cluster.nodes[place]
        if kind == "cut":
            self._cut(place)
        elif kind == "split":
            self._split()
        elif kind == "crash":
            if node.life is not None:
                self._clockwork.count("fault.crash")
                cluster.crash(place)
                if rng.randrange(2):
                    cluster.clockwork.at(rng.random(), lambda: self._restart(place))
            else:
                self._restart(place)
        elif kind == "leave":
            nodes = map(cluster.nodes.__getitem__, self._places)
            there = [one for one in nodes if one.life is None or not one.life.own.leaving]
            if len([one for one in there if not one.gone]) > 2 and not rng.randrange(3) and node.life is not None:
                self._clockwork.count("fault.leave")
                cluster.leave(place, tells=bool(rng.randrange(2)))
        elif kind == "consumer":
            cluster.consume(place, on=bool(rng.randrange(3)))
        elif kind == "queue":
            cluster.queue(place, on=bool(rng.randrange(3)))
            cluster.consume(place, on=True)
        elif self._late:
            self._clockwork.count("fault.join")
            late = self._late.pop()
            cluster.start(late)
            cluster.queue(late, on=True)
            cluster.consume(late, on=bool(rng.randrange(4)))
            self._use(late)

    def _use(self, place: str) -> None:
        """Have a node that knows nothing of groups so far be sent messages of all."""
        for group in self._groups:
            self._clockwork.at(self._rng.random() * 0.8, partial(self.cluster.send, place, group))

    def _restart(self, place: str) -> None:
        node = self.cluster.nodes[place]
        if node.life is None and not node.gone and place not in self._late:
            self.cluster.start(place)
            if self._rng.randrange(2):
                self._use(place)
            if self._rng.randrange(3):
                # Its clients come back.
                self._clockwork.at(self._rng.random(), lambda: self.cluster.consume(place, on=True))

    def _cut(self, place: str) -> None:
        cluster, rng = self.cluster, self._rng
        other = rng.choice([one for one in self._places if one != place])
        pairs = [(place, other), (other, place)]
        if rng.randrange(3) == 0:
            # One node is apart from all.
            pairs = [pair for one in self._places if one != place for pair in ((place, one), (one, place))]
        elif rng.randrange(3) == 0:
            del pairs[1]
        whole = any(pair in cluster.cuts for pair in pairs)
        self._clockwork.count("fault.cut", int(not whole))
        for pair in pairs:
            (cluster.mend if whole else cluster.cut)(*pair)

    def _split(self) -> None:
        """Divide the nodes into two sides for a while."""
        cluster, rng = self.cluster, self._rng
        side = set(rng.sample(self._places, rng.randint(1, len(self._places) - 1)))
        pairs = [(one, other) for one in self._places for other in self._places if (one in side) != (other in side)]
        if any(pair in cluster.cuts for pair in pairs):
            return
        self._clockwork.count("fault.split")
        for pair in pairs:
            cluster.cut(*pair)
        alone = [place for place in self._places if (place in side) in rng.choice(((True,), (False,), (True, False)))]
        self._clockwork.at(rng.random() * 0.5, lambda: self._take_for_down(pairs, alone))
        for _ in range(rng.randint(2, 10)):
            place, group = rng.choice(self._places), rng.choice(self._groups)
            self._clockwork.at(rng.uniform(0.3, 2.0), partial(cluster.send, place, group))
        ends_s = rng.uniform(1.0, 2.5)
        for pair in pairs:
            self._clockwork.at(ends_s, partial(cluster.mend, *pair))
        self._clockwork.at(ends_s, partial(self._use, rng.choice(self._places)))

    def _take_for_down(self, pairs: list[tuple[str, str]], alone: list[str]) -> None:
        for life in self.cluster.lives:
            for peer in life.peers:
                apart = (life.node.place, peer.there.place) in pairs and not peer.reaches
                if apart and life.node.place in alone and peer.node_id and peer.state != "left":
                    self._clockwork.count("fault.down")
                    peer.gone("down")

    # -- when nothing fails any more

    async def _heal(self) -> None:
        cluster, rng = self.cluster, self._rng
        self._clockwork.note("all faults end")
        self._clockwork.calm = True
        await trio.sleep(LEAVING_S + 1.0)
        for pair in list(cluster.cuts):
            cluster.mend(*pair)
        there = [node for node in map(cluster.nodes.__getitem__, self._places) if not node.gone]
        for node in there:
            if node.life is None:
                cluster.start(node.place)
        self._forget_gone()
        with_queue = [node.place for node in there if node.queue is not None] or [there[0].place]
        cluster.queue(with_queue[0], on=True)
        wanting = rng.sample(with_queue, rng.randint(1, len(with_queue)))
        for place in with_queue:
            # Where groups do not move they wait for a consumer of their own node.
            cluster.consume(place, on=place in wanting or cluster.moves_after_s >= 60.0)

    def _forget_gone(self) -> None:
        """Have all nodes know who has left for good."""
        gone = [node.node_id for node in self.cluster.nodes.values() if node.gone]
        for life in self.cluster.lives:
            for peer in life.peers:
                if peer.node_id in gone and peer.state != "left":
                    peer.gone("left")

    async def _judge(self, when: str) -> None:
        cluster, clockwork, fates = self.cluster, self._clockwork, self.cluster.fates
        began = clockwork.now
        await self._until(self._strangers, f"settled {when}")
        await self._until(lambda: fates.missing(fates.sent.values()), f"consumed {when}")
        last: list[ModelMessage] = []
        order = len(fates.order)
        for _ in range(2):
            for life in cluster.lives:
                last += [one for group in GROUPS if (one := cluster.send(life.node.place, group)) is not None]
        await self._until(lambda: fates.missing(last), f"consumed {when}, sent last")
        clockwork.count("seen.healed_ms", int(1_000 * (clockwork.now - began)))
        if self._settings.group_timeout == math.inf and self._settings.max_group_pins > len(GROUPS):
            for group in GROUPS:
                places = {place for place, one in fates.order[order:] if one in last and one.group == group}
                if len(places) != 1:
                    clockwork.violated("CG2", f"{when} the group {group} was consumed at {sorted(places)}")
        await self._rest(when)

    def _strangers(self) -> list[str]:
        """The lives that have not met all that are there."""
        lives = self.cluster.lives
        linked = {life.name: {peer.node_id for peer in life.peers if peer.connected} for life in lives}
        there = {life.node.node_id for life in lives}
        return [
            life.name for life in lives if not life.grouping.settled or linked[life.name] | {life.node.node_id} < there
        ]

    async def _until(self, missing: Callable[[], list[Any]], what: str) -> None:
        ends = self._clockwork.now + HEALED_S
        while found := missing():
            if self._clockwork.now > ends:
                self._clockwork.violated("progress", f"not {what} within {HEALED_S:g} s: {found[:5]}")
            await trio.sleep(0.1)

    async def _rest(self, when: str) -> None:
        """Check that nodes at rest are silent and agree."""
        cluster, clockwork = self.cluster, self._clockwork
        await trio.sleep(REST_S)
        before = clockwork.swarm.counters.get("seen.letters", 0)
        await trio.sleep(QUIET_S)
        letters = clockwork.swarm.counters.get("seen.letters", 0) - before
        if letters:
            clockwork.violated("quiet", f"{letters} letters in {QUIET_S:g} s of rest {when}")
        for what in disagreements(cluster):
            clockwork.violated("agreement", f"{when} {what}")
        for life in cluster.lives:
            for what in leaks(life):
                clockwork.violated("leak", f"{when} {what}")

    # -- one more node is away

    async def _one_away(self) -> None:
        """Check that groups go on which need no absent node.

        Checkpoint: as long as it takes.  Cancellation: ends it.
        """
        cluster, rng, fates = self.cluster, self._rng, self.cluster.fates
        if len(cluster.lives) < 2:
            return
        before = cluster.lives[0].grouping.arbiter.members
        places = [life.node.place for life in cluster.lives]
        rng.shuffle(places)
        away, stays, *others = places
        self._clockwork.note(f"{away} goes away")
        cluster.crash(away)
        await trio.sleep(3.0)
        event = rng.choice(("nothing", "restart", "join", "leave" if others else "restart"))
        self._clockwork.count(f"fault.away_and_{event}")
        if event == "restart":
            cluster.crash(stays)
            cluster.start(stays)
        elif event == "join":
            cluster.start(SPARE)
        elif event == "leave":
            cluster.leave(others.pop(), tells=False)
        cluster.queue(stays, on=True)
        for life in cluster.lives:
            cluster.consume(life.node.place, on=True)
        # A node that is asked in vain for long is given up, and that too is a change.
        await trio.sleep(4.0)
        fresh = [f"{group} anew" for group in (*GROUPS, *map(str, range(3)))]
        groups = unaffected(cluster, before, fresh)
        last = [one for group in groups if (one := cluster.send(stays, group)) is not None]
        self._clockwork.count("seen.sent_while_away", len(last))
        await self._until(lambda: fates.missing(last), f"consumed while {away} is away")
        await self._seldom(away)
        cluster.start(away)
        await trio.sleep(1.0)
        cluster.consume(away, on=True)
        self._forget_gone()
        await self._judge("after one was away")

    async def _seldom(self, away: str) -> None:
        """Nodes that wait for another one say little meanwhile."""
        swarm, lives = self._clockwork.swarm, len(self.cluster.lives)
        before = swarm.counters.get("seen.letters", 0)
        await trio.sleep(QUIET_S)
        letters = swarm.counters.get("seen.letters", 0) - before
        # To each of the others two after each pause, for the members of both; the first pauses are shorter ones.
        shorter = math.ceil(math.log2(PAUSE_MAX_S / PAUSE_S))
        allowed = lives * (lives - 1) * 2 * (shorter + QUIET_S / PAUSE_MAX_S)
        if letters > allowed:
            self._clockwork.violated("quiet", f"{letters} letters in {QUIET_S:g} s while {away} is away")


async def _play(simulation: Simulation) -> Outcome:
    clockwork = Clockwork(simulation)
    rng = clockwork.rng("story")
    places = "abcde"[: rng.choice(NODES)]
    settings = ClusterSettings(name="mesh", group_timeout=rng.choice(TIMEOUTS_S), max_group_pins=rng.choice(PINS_MAX))
    async with trio.open_nursery() as nursery:
        cluster = ModelCluster(clockwork, nursery, settings, places + SPARE)
        cluster.moves_after_s = rng.choice(MOVES_AFTER_S)
        clockwork.after = lambda: check_holders(cluster)
        clockwork.note(f"{places}, {settings.group_timeout=} {settings.max_group_pins=} {cluster.moves_after_s=}")
        for node in cluster.nodes.values():
            clockwork.note(f"{node.place} is {node.node_id.hex()[:8]}")
        story = Story(cluster, rng, settings)
        await story.run()
        for life in cluster.lives:
            for sight, number in life.grouping.counts().items():
                clockwork.count(f"seen.group_{sight}", number)
        nursery.cancel_scope.cancel()
    history = History(lambda: clockwork.now)
    history.notes += clockwork.notes
    return Outcome(history, 0, len(cluster.fates.order))


def run_grouping_seed(seed: int) -> SimulationResult:
    """Run a seed of the model."""
    with _letters_of(Random(f"{seed}/letters").choice(LETTERS_BYTES)):
        return run_seed(seed, _play, limit_s=LIMIT_S)


@contextmanager
def _letters_of(size_bytes: int) -> Iterator[None]:
    """Divide letters that are larger than this, in this block: a few groups fill several."""
    before = _letter.LETTER_BYTES_MAX
    setattr(_letter, "LETTER_BYTES_MAX", size_bytes)  # noqa: B010 - declared Final
    try:
        yield
    finally:
        setattr(_letter, "LETTER_BYTES_MAX", before)  # noqa: B010
