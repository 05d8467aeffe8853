"""The faults of links that a proxy carries: which are cut, and how late what is sent there arrives."""

from __future__ import annotations

import random
from typing import Final

from meshq.testing.kit._fault_plan import Direction

#: What is lost is sent again after so many seconds, and after twice as many each time that it is lost again.
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 10.0


class LinkRules:
    """The faults of all links; one direction of a link is (source, target)."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._cuts: dict[Direction, None] = {}
        self._delays: dict[Direction, tuple[float, float]] = {}
        self._losses: dict[Direction, float] = {}

    def cuts(self) -> list[Direction]:
        """Return the directions through which nothing gets."""
        return list(self._cuts)

    def is_cut(self, direction: Direction) -> bool:
        """Whether nothing gets through in this direction."""
        return direction in self._cuts

    def cut(self, source: str, target: str) -> None:
        """Let nothing through."""
        self._cuts[source, target] = None

    def delay(self, source: str, target: str, least_s: float, most_s: float) -> None:
        """Let everything take between so many seconds."""
        self._delays[source, target] = least_s, most_s

    def drop(self, source: str, target: str, probability: float) -> None:
        """Lose what is sent at this probability."""
        self._losses[source, target] = probability

    def restore(self) -> None:
        """End all faults."""
        for faults in (self._cuts, self._delays, self._losses):
            faults.clear()

    def lateness(self, direction: Direction) -> float:
        """Draw the seconds that the next bytes in this direction take."""
        least, most = self._delays.get(direction, (0.0, 0.0))
        late, again = self._chance.uniform(least, most), AGAIN_S
        while self._chance.random() < self._losses.get(direction, 0.0):
            late += again
            again = min(2 * again, AGAIN_S_MAX)
        return late
