"""What a simulation says of a bug that a test has planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qa.seeds import SeedReport, one_seed


def first_report(stage: str, seeds: Iterable[int], caught: Callable[[SeedReport], bool]) -> SeedReport:
    """The report of the first of these seeds in which the bug is caught.

    What a seed does changes with the product: one seed in which a rare bug is caught is another one after the next
    change.
    """
    reports = []
    for seed in seeds:
        reports.append(one_seed(seed, stage))
        if caught(reports[-1]):
            return reports[-1]
    raise AssertionError(f"not caught in {len(reports)} seeds: {[(one.seed, one.caught_by) for one in reports]}")
