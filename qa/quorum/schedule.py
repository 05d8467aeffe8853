"""A schedule of a quorum: candidates, witnesses, random faults, and the checks.

Q9: no two candidates may act at the same moment.  Q11: a witness promises a ballot once.  C1: a record that was stored
replaces the one before, and no other was stored in its place.  C2: who gets the lock finds the last record that was
stored.  C3: after the faults somebody gets the lock.
"""

from __future__ import annotations

import random
from typing import Final

from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh._lock_machine import Lock
from meshq.ha.quorum.mesh._witness_machine import Witness
from qa.quorum.candidate import Candidate
from qa.quorum.world import SESSION_S, History, WitnessNode, World

FAULTS_UNTIL_S: Final = 9.0
CALM_S: Final = 5.0
FAULTS: Final = ("witness killed", "witness paused", "candidate paused", "candidate killed", "cut", "cut one way")


#: The share of schedules in which a witness loses its disk.
FORGETTING_SHARE: Final = 0.35


def _let_one_forget(world: World, witnesses: list[WitnessNode], dice: random.Random) -> None:
    """A witness loses its disk, once a record is stored: before, the node id would belong to a set that is no more."""
    if dice.random() >= FORGETTING_SHARE:
        return
    node = dice.choice(witnesses)

    def forget() -> None:
        if world.history.stored:
            world.history.counts["witness forgets"] += 1
            node.forget(dice.random() * SESSION_S)

    world.after(dice.uniform(1.0, FAULTS_UNTIL_S), forget)


def run_schedule(seed: int, *, witness: type[Witness] = Witness, lock: type[Lock] = Lock) -> History:
    """Run a schedule; ``problems`` of the history lists each broken rule."""
    world = World(seed)
    dice = world.dice
    witnesses = [WitnessNode(world, f"w{index}", witness) for index in range(dice.choice((3, 3, 5)))]
    candidates = [Candidate(world, f"c{index}", witnesses, lock) for index in range(dice.choice((2, 2, 3)))]

    def fault() -> None:
        if world.now > FAULTS_UNTIL_S:
            world.calm = True
            return
        kind = dice.choice(FAULTS)
        world.history.counts[kind] += 1
        seconds = min(dice.choice((0.3, 1.0, 1.0, 2.5)) * SESSION_S * dice.random(), FAULTS_UNTIL_S - world.now)
        node, candidate = dice.choice(witnesses), dice.choice(candidates)
        if kind == "witness killed":
            node.kill(seconds)
        elif kind == "witness paused":
            node.pause(seconds)
        elif kind == "candidate paused":
            candidate.pause(seconds)
        elif kind == "candidate killed":
            candidate.restart()
        else:
            ways = {(node.name, candidate.name), (candidate.name, node.name)}
            if kind == "cut one way":
                ways.discard(dice.choice(sorted(ways)))
            if dice.random() < 0.4:
                ways |= {(candidate.name, one.name) for one in witnesses}
            world.cut |= ways
            world.after(seconds, lambda: world.cut.difference_update(ways))
        world.after(dice.expovariate(2.2), fault)

    world.after(1.0, fault)
    _let_one_forget(world, witnesses, random.Random(f"{seed} forgets"))
    world.run(FAULTS_UNTIL_S + CALM_S)
    _check(world.history)
    return world.history


def _check(history: History) -> None:
    for index, one in enumerate(history.acting):
        for other in history.acting[index + 1 :]:
            if one.who != other.who and max(one.begin, other.begin) < min(one.end, other.end):
                history.problems.append(f"Q9: {one} and {other}")
    by_number: dict[int, QuorumRecord] = {}
    for asked, told, before, new in history.stored:
        if new.sequence in by_number:
            history.problems.append(f"C1: {new} and {by_number[new.sequence]} were stored after {before}")
        by_number[new.sequence] = new
        for began, found in history.found:
            if began > told and found.sequence < new.sequence:
                history.problems.append(f"C2: {found} was found after {new} was stored at {asked:.3f}")
    if not any(one.end > FAULTS_UNTIL_S + CALM_S / 5 for one in history.acting):
        history.problems.append("C3: nobody has the lock after the faults")
