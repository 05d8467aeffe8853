"""The seed in which a planted bug is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qa.seeds import SeedReport, one_seed
from tests.known_seeds import caught_by, caught_first


def first_report(stage: str, seeds: Iterable[int], caught: Callable[[SeedReport], bool]) -> SeedReport:
    """The report of the first of these seeds in which the bug is caught.

    What a seed does changes with the product: one seed in which a rare bug is caught is another one after the next
    change.
    """
    reports = []
    for seed in caught_first(seeds):
        reports.append(one_seed(seed, stage))
        if caught(reports[-1]):
            caught_by(seed)
            return reports[-1]
    raise AssertionError(f"not caught in {len(reports)} seeds: {[(one.seed, one.caught_by) for one in reports]}")
