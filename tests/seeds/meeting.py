"""Seeds of one simulation, and more of them while something rare has not happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qa.seeds import SeedReport, many_seeds
from qa.simulate import failed_seeds_of, recorded
from tests.known_seeds import WRITES, note_rare, rare
from tests.tiers import cores_of_a_test

ROOT = Path(__file__).parents[2]


def reports_that_meet(stage: str, kinds: Sequence[str], *, seeds: int, most: int) -> list[SeedReport]:
    """The reports of the first ``seeds`` seeds and of all that ever failed, none of which may fail, and of so many more
    that each kind was met.

    What a seed meets changes with the product; a simulation in which something never happens is told by ``most``.
    Seeds that met what is rare when somebody looked last are drawn before the others.
    """
    reports: list[SeedReport] = []
    missing = set(kinds)
    always = dict.fromkeys([*range(seeds), *recorded(ROOT / failed_seeds_of(stage))])
    known = [] if WRITES else rare(stage)
    drawn = dict.fromkeys([*always, *known, *range(seeds, most)])
    for report in many_seeds(drawn, cores_of_a_test(), stage):
        assert report.passed, report.line
        reports.append(report)
        missing.difference_update(_met(report, kinds))
        if len(reports) >= len(always) and not missing and not WRITES:
            return reports
    if WRITES:
        first = set[str]().union(*(_met(report, kinds) for report in reports[: len(always)]))
        later = {report.seed: _met(report, kinds) for report in reports[len(always) :]}
        note_rare(stage, set(kinds) - first, later)
    assert not missing, f"{most} seeds of {stage} met none of {sorted(missing)}"
    return reports


def _met(report: SeedReport, kinds: Sequence[str]) -> set[str]:
    """Which of these a seed has met."""
    return {kind for kind in kinds if report.counters.get(kind, 0)}
