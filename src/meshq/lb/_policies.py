"""The policies that need nothing but the list of targets."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Final

from meshq.abc import BalancerPolicy, BalancerTarget

#: Targets that may take the place of one to stay with.
STANDINS_MAX: Final = 64


class _Chance:
    """Numbers that follow from 64 bits, equally often each."""

    __slots__ = ("_drawn", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def below(self, bound: int) -> int:
        """Return a number from 0 to below the bound."""
        self._drawn += 1
        text = f"{self._seed}/{self._drawn}".encode()
        # Of 64 bits, the rest is even enough: nobody has 2**60 targets.
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) % bound


class RoundRobin(BalancerPolicy):
    """A policy that chooses targets in the order of the list, from anywhere on.

    When the list changes it goes on behind the target that was chosen last.
    """

    def __init__(self) -> None:
        self._chance = _Chance(0)
        # The last choice, and its place in the list of that time.
        self._last: tuple[BalancerTarget, int] | None = None

    def begin(self, chance: int) -> BalancerPolicy:
        """Return a copy that begins elsewhere."""
        made = copy.copy(self)
        made._chance, made._last = _Chance(chance), None
        return made

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return the next target."""
        if not targets:
            return None
        index = self._next(targets) % len(targets)
        self._last = targets[index], index
        return targets[index]

    def _next(self, targets: Sequence[BalancerTarget]) -> int:
        if self._last is None:
            return self._chance.below(len(targets))
        last, index = self._last
        found = _index_of(last, targets)
        # Behind one that has gone stands what is at its place now.
        return index if found is None else found + 1


class Random(BalancerPolicy):
    """A policy that chooses by chance, each target equally often."""

    def __init__(self) -> None:
        self._chance = _Chance(0)

    def begin(self, chance: int) -> BalancerPolicy:
        """Return a copy that chooses otherwise."""
        made = copy.copy(self)
        made._chance = _Chance(chance)
        return made

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return a target by chance."""
        return targets[self._chance.below(len(targets))] if targets else None


class RandomSticky(BalancerPolicy):
    """A policy that chooses a target by chance, and the same target each time after that.

    While that target is not there another one takes its place, always the same, too.
    """

    def __init__(self) -> None:
        self._chance = _Chance(0)
        # The one to stay with, then those that have taken its place.
        self._chosen: tuple[BalancerTarget, ...] = ()

    def begin(self, chance: int) -> BalancerPolicy:
        """Return a copy that stays elsewhere."""
        made = copy.copy(self)
        made._chance, made._chosen = _Chance(chance), ()
        return made

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return the target that was chosen first."""
        if not targets:
            return None
        for one in self._chosen:
            index = _index_of(one, targets)
            if index is not None:
                return targets[index]
        drawn = targets[self._chance.below(len(targets))]
        self._chosen = (*self._chosen[:STANDINS_MAX], drawn)
        return drawn


class FirstElement(BalancerPolicy):
    """A policy that chooses the first target of the list."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return the first target."""
        return targets[0] if targets else None


def _index_of(target: BalancerTarget, targets: Sequence[BalancerTarget]) -> int | None:
    """Return the place of a target in a list, by its URL or by its node's id."""
    for index, one in enumerate(targets):
        if one.url == target.url or (target.node_id and one.node_id == target.node_id):
            return index
    return None
