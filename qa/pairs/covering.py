"""Which features run together in which seed: a covering array, made anew from the list of features alone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

#: Candidates of which the best becomes the next row, and the part of the features that are on in one.
CANDIDATES: Final = 60
SHARES: Final = (0.35, 0.5, 0.65)
CHANCE: Final = 2

Row = frozenset[str]


def array_of(features: Sequence[str], rows: int, *, excluded: Sequence[tuple[str, str]] = ()) -> list[Row]:
    """Return the features of so many rows, such that the rarest pairs are together as often as can be.

    ``excluded``: pairs that can't be together.  The first rows of a longer array are those of a shorter one.
    """
    chance, counts = random.Random(CHANCE), Counter[tuple[str, str]]()
    wanted = pairs_of(features, excluded)
    found: list[Row] = []
    for _ in range(rows):
        least = min(counts[pair] for pair in wanted)
        rare = [pair for pair in wanted if counts[pair] == least]
        candidates = [_drawn(chance, features, excluded, rare) for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda row: sum(one in row and other in row for one, other in rare))
        found.append(best)
        counts.update(pair for pair in wanted if pair[0] in best and pair[1] in best)
    return found


def pairs_of(features: Sequence[str], excluded: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return the pairs that are to be together, in the order of the features."""
    never = {frozenset(pair) for pair in excluded}
    return [pair for pair in itertools.combinations(features, 2) if frozenset(pair) not in never]


def missing_triples(rows: Sequence[Row], features: Sequence[str], excluded: Sequence[tuple[str, str]] = ()) -> int:
    """Return how many triples were never together, those aside of which a pair can't be."""
    never = {frozenset(pair) for pair in excluded}
    met = {triple for row in rows for triple in itertools.combinations(sorted(row), 3)}
    every = itertools.combinations(sorted(features), 3)
    able = (one for one in every if not any(frozenset(pair) in never for pair in itertools.combinations(one, 2)))
    return sum(triple not in met for triple in able)


def counts_of(rows: Sequence[Row], features: Sequence[str]) -> Counter[tuple[str, str]]:
    """Return how often each pair is together."""
    every = itertools.combinations(features, 2)
    return Counter({(one, other): sum(one in row and other in row for row in rows) for one, other in every})


def _drawn(
    chance: random.Random,
    features: Sequence[str],
    excluded: Sequence[tuple[str, str]],
    rare: Sequence[tuple[str, str]],
) -> Row:
    """Draw a row that has one of the rarest pairs, and none that can't be together."""
    first, second = chance.choice(rare)
    share = chance.choice(SHARES)
    others = [name for name in features if name not in (first, second) and chance.random() < share]
    chance.shuffle(others)
    row = {first, second}
    for name in others:
        if not any({name, other} == set(pair) for other in row for pair in excluded):
            row.add(name)
    return frozenset(row)
