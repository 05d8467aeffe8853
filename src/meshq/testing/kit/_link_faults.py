"""Faults of the links between places of a simulated test; a face of the test says which places there are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from meshq.testing.kit import _fault_plan as plan


class FaultyLinks(Protocol):
    """Links between places, by their names on the network; a direction is a source and a target."""

    def cut(self, source: str, target: str, /) -> None:
        """Let nothing through."""

    def delay(self, source: str, target: str, least: float, most: float, /) -> None:
        """Let everything take between so many seconds."""

    def drop(self, source: str, target: str, probability: float, /) -> None:
        """Lose segments at this probability; they are sent again."""

    def restore(self) -> None:
        """End all faults."""


class LinkFaults(ABC):
    """Faults of links.  They happen at once; a wrong name is a ``UsageError`` that names the places."""

    @abstractmethod
    def _links(self) -> FaultyLinks:
        """Return the links.  Raises: UsageError: links of these places don't fail."""

    @abstractmethod
    def _note(self, what: str, text: str) -> None:
        """Write an event of a link down."""

    @abstractmethod
    def _places(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of which one group is cut from the others, and all names, which may be more."""

    @abstractmethod
    def host(self, place: str) -> str:
        """Return the name on the network of a place.  Raises: UsageError: there is no such place."""

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut all links between places of different groups; one group alone is cut from all other places."""
        sides = plan.groups_of([group if isinstance(group, str) else list(group) for group in groups], *self._places())
        for source, target in plan.pairs_between(sides):
            self._links().cut(self.host(source), self.host(target))
        self._note(" | ".join(",".join(side) for side in sides), "partition")

    def cut(self, a: str, b: str, one_way: bool = False) -> None:
        """Let nothing through between ``a`` and ``b``; with ``one_way`` only nothing from ``a`` to ``b``."""
        plan.check_flag("one_way", one_way)
        for source, target in self._directions(a, b)[: 1 if one_way else 2]:
            self._links().cut(source, target)
        self._note(f"{a} {'->' if one_way else '<->'} {b}", "cut")

    def heal(self) -> None:
        """End all cuts, delays and losses of all links of the test."""
        self._links().restore()
        self._note("links", "healed")

    def delay(self, a: str, b: str, seconds: float, jitter: float = 0.0) -> None:
        """Let everything between ``a`` and ``b`` take ``seconds`` each way, and up to ``jitter`` seconds more."""
        plan.check_seconds("seconds", seconds)
        plan.check_seconds("jitter", jitter)
        for source, target in self._directions(a, b):
            self._links().delay(source, target, seconds, seconds + jitter)
        self._note(f"{a} <-> {b}", f"delay of {seconds:g} to {seconds + jitter:g} s")

    def drop(self, a: str, b: str, probability: float) -> None:
        """Lose segments between ``a`` and ``b`` at this probability; they are sent again, and arrive late."""
        plan.check_probability(probability)
        for source, target in self._directions(a, b):
            self._links().drop(source, target, probability)
        self._note(f"{a} <-> {b}", f"{probability:.0%} lost")

    def _directions(self, a: str, b: str) -> list[plan.Direction]:
        """Return both directions of a link, from ``a`` to ``b`` first, by the names on the network."""
        here, there = self.host(a), self.host(b)
        plan.check_different(a, b)
        return [(here, there), (there, here)]
