"""The seed in which a planted bug is caught: brief runs, each of which ends as soon as the bug shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, Final

import pytest

from meshq.testing import Simulation
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError
from meshq.testing.history._final_counts import FinalCounts
from qa.chain.scenario import Chain
from qa.seeds import SeedReport, one_seed
from tests.known_seeds import WRITES, caught_by, caught_first

#: How much less happens in brief runs of a mesh: three simulated seconds of faults and not twenty-two, with bursts
#: three times as close together, within which the node that goes begins to; 45 for its drain, and fifteen for the
#: others to see it again; no least number of sends, and no least time.
#: What is judged afterwards is the same.
BRIEF_MESH: Final = {
    "qa.mesh.scenario.FAULTS_S": 3.0,
    "qa.mesh.scenario.LEAST_S": 0.0,
    "qa.mesh.scenario.SENDS_MIN": 0,
    "qa.mesh.bursts.flood.BURSTS_PACE": 0.3,
    "qa.mesh.gone.EARLIEST_S": 0.5,
    "qa.mesh.gone.WITHIN_S": 1.5,
    "qa.mesh.departure.DRAINED_S": 45.0,
    "qa.mesh.departure.SEEN_S": 15.0,
}
#: In brief runs of a chain faults come for six simulated seconds and not for twenty.
BRIEF_CHAIN: Final = {"qa.chain.scenario.DURATION_S": 6.0}
#: In those of a single broker for ten, not for sixty.
BRIEF_BROKER: Final = {"qa.simulation.scenario.DURATION_S": 10.0, "qa.simulation.scenario.SENDS_MIN": 0}
BRIEF: Final[Mapping[str, Mapping[str, float]]] = {
    **dict.fromkeys(("mesh", "redistribution", "discovery", "drain"), BRIEF_MESH),
    "chain": BRIEF_CHAIN,
    # These take a tenth of a second.
    "grouping": {},
    **dict.fromkeys(("broker", "storage", "turns", "replicated"), BRIEF_BROKER),
}
#: Within so many brief runs a bug has to be caught, and else within so many whole ones.
BRIEF_RUNS: Final = 60
WHOLE_RUNS: Final = 30
#: Of so many seeds the one is written down that catches a bug in the fewest turns of the loop.
COMPARED: Final = 4


@contextmanager
def brief(stage: str) -> Iterator[None]:
    """Make the runs of this simulation brief."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in BRIEF[stage].items():
            patch.setattr(name, value)
        yield


def brief_seed(seed: int, stage: str) -> SeedReport:
    """Run one seed in brief."""
    with brief(stage):
        return one_seed(seed, stage)


@contextmanager
def ending_at(checkers: Iterable[str], what: str) -> Iterator[None]:
    """End each simulation as soon as one of these checkers has something to say of ``what``.

    That is known for what has to be 0 at some moment, and for a chain; it would be said at the end all the same.
    """
    running: list[Simulation] = []
    run, left, wrong = Simulation.run, FinalCounts.left, Chain.wrong

    async def remembered(self: Simulation, *about: Any) -> None:
        running[:] = [self]
        await run(self, *about)

    def noticed(violation: Violation) -> None:
        if violation.checker in checkers and what in violation.what:
            running[0].fail(HistoryError([violation], ""))

    def left_over(self: FinalCounts, name: str, number: int) -> None:
        left(self, name, number)
        if number:
            noticed(Violation("Q14", f"{number} {name} left over"))

    def found_wrong(self: Chain, checker: str, text: str) -> None:
        wrong(self, checker, text)
        noticed(Violation(checker, text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "run", remembered)
        patch.setattr(FinalCounts, "left", left_over)
        patch.setattr(Chain, "wrong", found_wrong)
        yield


def first_report(
    stage: str, *checkers: str, what: str = "", to_the_end: bool = False, whole_runs: bool = False
) -> SeedReport:
    """The report of the first run in which one of these checkers says so.

    ``what``: a part of what it says.  ``to_the_end``: the run goes on after that, and other checkers say theirs.
    ``whole_runs``: no brief run shows it.
    What a seed does changes with the product: one seed in which a rare bug is caught is another one after the next
    change.  So the known seed comes first, then seeds in a row, and at last whole runs.
    """

    def run(seed: int, *, whole: bool) -> SeedReport | None:
        with ExitStack() as stack:
            if not whole:
                stack.enter_context(brief(stage))
            if not to_the_end:
                stack.enter_context(ending_at(checkers, what))
            report = one_seed(seed, stage)
        reports.append(report)
        return None if {*checkers}.isdisjoint(report.caught_by) or what not in report.failure else report

    reports: list[SeedReport] = []
    if WRITES:
        compared = [report for seed in range(COMPARED) if (report := run(seed, whole=whole_runs)) is not None]
        if compared:
            report = min(compared, key=lambda one: one.turns)
            caught_by(report.seed)
            return report
    first = ((seed, whole_runs) for seed in caught_first(range(WHOLE_RUNS if whole_runs else BRIEF_RUNS)))
    for seed, whole in chain(first, () if whole_runs else ((seed, True) for seed in range(WHOLE_RUNS))):
        report = run(seed, whole=whole)
        if report is not None:
            caught_by(seed)
            return report
    seen = [(one.seed, one.caught_by) for one in reports]
    raise AssertionError(f"not caught by {', '.join(checkers)} in {len(reports)} runs, brief ones first: {seen}")
