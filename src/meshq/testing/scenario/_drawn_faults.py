"""The faults of a seed: drawn before the run begins, so that leaving one out changes none of the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from meshq.testing.kit._fault_plan import TEST_HOST
from meshq.testing.kit._pairs import store_of
from meshq.testing.scenario._fault import DOWN_KINDS, FREEING_KINDS, LINK_KINDS, Fault, FaultKind

#: How many faults a seed has at most, one of these.
COUNTS: Final = (1, 2, 3, 5, 8)
#: Many a scenario is over in a moment of simulated time: half of the faults come at times of every size from here on.
SOONEST_S: Final = 0.002
SHORTEST_S: Final = 0.05
#: A fault lasts no longer than this, nor than a third of the time in which faults begin.
LONGEST_S: Final = 20.0
#: A node that is started again needs up to so long until clients and other nodes have found it.
BACK_S: Final = 5.0
#: Of a fault that would leave no node to serve another one is drawn, so often.
DRAWS_MAX: Final = 8


def drawn_faults(
    rng: random.Random, kinds: Sequence[FaultKind], nodes: Sequence[str], duration_s: float
) -> list[Fault]:
    """Draw the faults of a seed, in the order of their times.

    A seed has some of the kinds only: faults of all kinds at once hide each other.  Where there are several nodes, one
    of them serves at any time.
    """
    able = [kind for kind in kinds if len(nodes) > 1 or kind != "partition"]
    if not able:
        return []
    chosen = [kind for kind in able if rng.random() < 0.5] or [rng.choice(able)]
    faults: list[Fault] = []
    one_store = len({store_of(name) for name in nodes}) == 1
    for _ in range(rng.choice(COUNTS)):
        for _ in range(DRAWS_MAX):
            fault = _drawn(rng, rng.choice(chosen), nodes, duration_s)
            if one_store or _one_serves([*faults, fault], nodes):
                faults.append(fault)
                break
    return sorted(faults, key=lambda fault: fault.at)


def _logarithmic(rng: random.Random, least: float, most: float) -> float:
    return min(least, most) if most <= least else float(least * (most / least) ** rng.random())


def _drawn(rng: random.Random, kind: FaultKind, nodes: Sequence[str], duration_s: float) -> Fault:
    at = _logarithmic(rng, SOONEST_S, duration_s) if rng.random() < 0.5 else rng.uniform(0.0, duration_s)
    seconds = _logarithmic(rng, SHORTEST_S, min(LONGEST_S, duration_s / 3))
    amount = 0.0
    where: list[str]
    if kind == "partition":
        where = sorted(rng.sample(list(nodes), rng.randrange(1, len(nodes))))
    elif kind in LINK_KINDS:
        where = rng.sample([*nodes, TEST_HOST], 2)
    else:
        where = [rng.choice(nodes)]
    if kind == "slow":
        amount = _logarithmic(rng, 0.01, 2.0)
    elif kind == "lossy":
        amount = rng.choice((0.01, 0.1, 0.5))
    elif kind == "flapping":
        amount = max(0.01, seconds / rng.choice((3, 5, 9)))
    elif kind == "wall_clock":
        amount, seconds = rng.choice((-1, 1)) * _logarithmic(rng, 1.0, 86_400.0), 0.0
    return Fault(_rounded(at), kind, tuple(where), _rounded(seconds), _rounded(amount))


def _rounded(number: float) -> float:
    """A number as people write it, so that a printed fault is the fault that has happened."""
    return float(f"{number:.4g}")


def _out(fault: Fault, nodes: Sequence[str]) -> Sequence[str]:
    """Return the nodes that do not serve while a fault lasts, or that the test does not reach."""
    if fault.kind in LINK_KINDS:
        return fault.where if TEST_HOST in fault.where else ()
    if fault.kind not in DOWN_KINDS:
        return ()
    if fault.kind in FREEING_KINDS:
        return fault.where
    # Who shares the store can't take over.
    return [name for name in nodes if store_of(name) == store_of(fault.where[0])]


def _one_serves(faults: Sequence[Fault], nodes: Sequence[str]) -> bool:
    """Whether at the beginning of every fault there is a node that serves, and that the test reaches."""
    for now in faults:
        out: set[str] = set()
        for fault in faults:
            if fault.at <= now.at <= fault.at + fault.seconds + BACK_S:
                out.update(_out(fault, nodes))
        if out.issuperset(nodes):
            return False
    return True
