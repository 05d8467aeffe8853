"""``simulate``: a scenario with many seeds, and the fewest and shortest faults with which it fails."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, Unpack

import attrs

from meshq.errors import SettingsError
from meshq.testing.kit._cluster_settings import NodeKeywords
from meshq.testing.kit._own_frames import trimmed
from meshq.testing.kit._world import WorldEvent
from meshq.testing.scenario._again import again_call
from meshq.testing.scenario._fault import Fault, Faults
from meshq.testing.scenario._fault_run import Invariant
from meshq.testing.scenario._seed_run import LIMIT_S, Scenario, ScenarioPlan, SeedRun, plan_of, run_one
from meshq.testing.scenario._shrink_plan import TRIES_MAX, shortened, shrunk
from meshq.testing.scenario._workers import check_workers, failures, runs_of

SEEDS: Final = 100
NODES: Final = 3
DURATION_S: Final = 60.0
EMPTY: Final = "nothing has happened: the scenario did nothing with its cluster, and was over before the first fault"
#: The search for fewer faults takes at most so many simulated seconds, about.
SHRINK_S_MAX: Final = 20_000.0


class SimulationFailed(AssertionError):
    """A scenario has failed with a seed; the message has seed, error, faults, and the command to repeat it.

    The cause is the error of the scenario.
    """


class EmptySimulationWarning(UserWarning):
    """A scenario did nothing, and no fault happened: that it passed says nothing."""


@attrs.frozen(kw_only=True)
class SeedFailure:
    """A failure of a scenario with one seed.  ``faults``: those that the failure needs, as far as it was tried."""

    seed: int
    error: BaseException
    faults: list[Fault]
    #: How many faults the seed has.
    drawn: int
    #: The nodes and queues at the end, and the last events, a line each.
    events: list[str] = attrs.field(repr=False)
    #: The one line that repeats it.
    command: str

    def __str__(self) -> str:
        which = f"{len(self.faults)} of its {self.drawn} faults" if self.faults else "no fault at all"
        return "\n".join(
            [
                f"seed {self.seed} fails, with {which}: {type(self.error).__name__}: {self.error}".rstrip(": "),
                *(f"  {fault}," for fault in self.faults),
                f"again: {self.command}",
            ]
        )


@attrs.frozen(kw_only=True)
class SimulationReport:
    """The outcome of ``simulate``: the seeds that were run, and the failures among them."""

    seeds: list[int]
    failures: list[SeedFailure]
    #: How often a fault of each kind has happened.
    counters: dict[str, int]
    simulated_seconds: float
    #: For each seed a hash of everything that ran: equal for equal runs.
    traces: dict[int, int] = attrs.field(repr=False)
    #: The seeds in which nothing happened: no fault, and nothing that the scenario did with the cluster.
    empty: list[int] = attrs.field(factory=list)

    @property
    def ok(self) -> bool:
        """Whether no seed has failed."""
        return not self.failures

    def check(self) -> SimulationReport:
        """Return this report if no seed has failed.

        Raises:
            SimulationFailed: the first failure.
        """
        __tracebackhide__ = True
        if self.failures:
            raise SimulationFailed(str(self.failures[0])) from self.failures[0].error
        return self


def simulate(
    scenario: Scenario,
    *,
    seeds: int | Iterable[int] = SEEDS,
    nodes: int = NODES,
    faults: Faults = "all",
    duration: float = DURATION_S,
    invariants: Sequence[Invariant] = (),
    shrink: bool = True,
    limit: float = LIMIT_S,
    stop_at: int = 1,
    workers: int = 1,
    **settings: Unpack[NodeKeywords],
) -> SimulationReport:
    """Run ``await scenario(cluster)`` once for each seed, in virtual time, with another schedule and other faults.

    ``seeds``: how many, or which.  ``faults``: ``"all"`` (those that destroy nothing that was confirmed), ``"none"``,
    a list of kinds, or a list of ``Fault`` that happen in every seed.  ``duration``: they begin within so many
    simulated seconds, or until the scenario calls ``await cluster.healed()``.  ``invariants``: async functions of the
    cluster, called after each fault began, and at the end, when all is healed.  ``shrink``: look for the fewest faults
    that a failure needs, and the shortest.  ``limit``: a seed fails that is not done so many simulated seconds after
    the time in which faults begin and end.  ``stop_at``: stop after so many failures.  ``workers``: so many
    processes share the seeds; the report is the same.  The settings of the cluster are those of ``meshq_cluster``.

    Raises:
        SettingsError: a setting is not allowed.
        UsageError: a fault names an unknown node; or another process can't load the scenario.
        BrokenError: a process has died; or a seed fails in another process only, and so depends on more than its seed.
    """
    plan = plan_of(
        nodes, dict(settings), faults=faults, duration=duration, invariants=invariants, shrink=shrink, limit=limit
    )
    return Seeds(scenario, plan, stop_at=stop_at, workers=workers).run(seeds_of(seeds))


def seeds_of(seeds: Any) -> list[int]:
    """Return the seeds that are meant.

    Raises:
        SettingsError: it is neither a number of seeds nor seeds.
    """
    allowed = "how many, from 1, or whole numbers from 0"
    if type(seeds) is int:
        if seeds < 1:
            raise SettingsError("seeds", seeds, allowed)
        return list(range(seeds))
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise SettingsError("seeds", seeds, allowed)
    found = list(seeds)
    if not found or not all(type(seed) is int and seed >= 0 for seed in found):
        raise SettingsError("seeds", seeds, allowed)
    return found


class Seeds:
    """A scenario with its settings, to be run with seeds."""

    def __init__(
        self,
        scenario: Scenario,
        plan: ScenarioPlan,
        *,
        stop_at: int = 1,
        workers: int = 1,
        command: Callable[[int], str] | None = None,
        tell: Callable[[WorldEvent], object] | None = None,
    ) -> None:
        if type(stop_at) is not int or stop_at < 1:
            raise SettingsError("stop_at", stop_at, "a number of failures from 1")
        check_workers(workers)
        if not callable(scenario):
            raise SettingsError("scenario", scenario, "an async function of the cluster")
        self._plan = plan
        self._stop_at = stop_at
        self._scenario = scenario
        self._workers = workers
        self._command = partial(again_call, scenario, plan) if command is None else command
        self._play = partial(run_one, scenario, plan, failures=failures())
        self._tell = tell

    def _runs(self, seeds: Sequence[int]) -> Generator[SeedRun, None, None]:
        if self._workers > 1 and len(seeds) > 1:
            yield from runs_of(self._scenario, self._plan, seeds, self._workers)
            return
        for seed in seeds:
            yield self._play(seed, self._plan.faults_of(seed), tell=self._tell)

    def run(self, seeds: Sequence[int]) -> SimulationReport:
        """Run the seeds, and report in their order."""
        counters: Counter[str] = Counter(dict.fromkeys(self._plan.kinds, 0))
        runs: list[SeedRun] = []
        failed: list[SeedFailure] = []
        with closing(self._runs(seeds)) as all_runs:
            for run in all_runs:
                counters.update(run.happened)
                runs.append(run)
                if run.error is not None:
                    failed.append(self._failure(run))
                    if len(failed) >= self._stop_at:
                        break
        empty = [run.seed for run in runs if run.empty]
        if empty and len(empty) == len(runs):
            warnings.warn(EmptySimulationWarning(EMPTY), stacklevel=3)
        return SimulationReport(
            empty=empty,
            seeds=[run.seed for run in runs],
            failures=failed,
            counters=dict(counters),
            simulated_seconds=sum(run.simulated_s for run in runs),
            traces={run.seed: run.trace for run in runs},
        )

    def _failure(self, run: SeedRun) -> SeedFailure:
        """Look for the faults that this failure needs."""
        last, kind, tries = run, type(run.error), 0

        def fails(faults: list[Fault]) -> bool:
            nonlocal last, tries
            tries += 1
            again = self._play(run.seed, faults)
            if type(again.error) is kind:
                last = again
            return last is again

        if self._plan.shrink:
            # Runs that wait for what never comes are long.
            tries_max = max(1, min(TRIES_MAX, int(SHRINK_S_MAX / max(1.0, run.simulated_s))))
            needed = shrunk(run.faults, fails, tries_max=tries_max)
            shortened(needed, Fault.shorter, fails, tries_max=tries_max - tries)
        assert last.error is not None
        return SeedFailure(
            seed=run.seed,
            error=trimmed(last.error),
            faults=last.faults,
            drawn=len(run.faults),
            events=last.lines,
            command=self._command(run.seed),
        )
