"""The faults of the links that a proxy carries: cuts, delays and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.testing.kit._fault_plan import Direction

#: What is lost is sent again after so many seconds, and after twice as many each time that it is lost again.
AGAIN_S: Final = 0.2
AGAIN_S_MAX: Final = 10.0


class LinkRules:
    """The faults of all links; one direction of a link is (source, target).  ``chance`` draws numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float]) -> None:
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
        """Lose segments at this probability; they are sent again."""
        self._losses[source, target] = probability

    def restore(self) -> None:
        """End all faults."""
        for faults in (self._cuts, self._delays, self._losses):
            faults.clear()

    def lateness(self, direction: Direction) -> float:
        """Draw the seconds that the next bytes in this direction take."""
        least, most = self._delays.get(direction, (0.0, 0.0))
        late, again = least + (most - least) * self._chance(), AGAIN_S
        while self._chance() < self._losses.get(direction, 0.0):
            late += again
            again = min(2 * again, AGAIN_S_MAX)
        return late
