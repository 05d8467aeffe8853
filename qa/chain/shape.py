"""The links of a simulated chain, which a seed draws."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from meshq.testing import Simulation
from qa.chain.explained import EXPLAINED_SIGHTS

KINDS: Final = ("kill", "kill", "power", "cut", "isolated", "reset", "pause", "both", "left")
#: What the seeds have to have met, each in at least one of them.
CHAIN_SIGHTS: Final = (
    "chain",
    "ring",
    "one_way",
    "mediator",
    "on_demand",
    "retired",
    "left",
    "too_far",
    "rescued",
    "rescued_from_afar",
    "out_of_reach",
    "roamed",
    *EXPLAINED_SIGHTS,
)


class Shape:
    """The links of a seed: who is linked to whom, and how far a message goes."""

    def __init__(self, simulation: Simulation) -> None:
        rng, count = simulation.swarm.rng("hops/shape"), simulation.swarm.count
        self.names: str = "abcde"[: rng.choice((3, 4, 4, 5))]
        ring = rng.random() < 0.5
        self.both: bool = rng.random() < 0.5
        pairs = [*pairwise(self.names), *([(self.names[-1], self.names[0])] if ring else [])]
        self.links: dict[str, list[str]] = {name: [] for name in self.names}
        for here, there in pairs:
            self.links[here].append(there)
            if self.both:
                self.links[there].append(here)
        self.hops: int = rng.choice((2, len(self.names) - 1, len(self.names) - 1))
        self.mode: str = rng.choice(("strict", "on_demand"))
        self.owners: list[str] = [name for name in self.names if rng.random() < 0.6] or [self.names[-1]]
        self.retiring: str = rng.choice(self.names)
        for sight in CHAIN_SIGHTS:
            count(f"seen.{sight}", 0)
        for kind in KINDS:
            count(f"fault.{kind}", 0)
        count("seen.ring" if ring else "seen.chain")
        count("seen.one_way", int(not self.both))
        count("seen.on_demand", int(self.mode == "on_demand"))
        count("seen.mediator", int(len(self.owners) < len(self.names)))
        count("seen.too_far", int(any(len(self.distances(name)) < len(self.names) for name in self.names)))

    def distances(self, name: str, hops: int = 0) -> dict[str, int]:
        """How many links away each node is that messages of a node may reach, itself included.

        ``hops``: more than ``max_hops`` of the seed.
        """
        found, waiting = {name: 0}, deque([name])
        while waiting:
            here = waiting.popleft()
            for there in self.links[here]:
                if there not in found and found[here] < (hops or self.hops):
                    found[there] = found[here] + 1
                    waiting.append(there)
        return found
