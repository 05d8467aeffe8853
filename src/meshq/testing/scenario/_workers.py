"""Seeds of a scenario in several processes; each process runs one seed after the other."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

import attrs

from meshq.errors import BrokenError, SettingsError, UsageError
from meshq.testing.scenario._seed_run import Scenario, ScenarioPlan, SeedRun, run_one

WORKERS_MAX: Final = 1024


def check_workers(workers: object) -> None:
    """Raise ``SettingsError`` unless this is a number of processes."""
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise SettingsError("workers", workers, f"a number of processes from 1 to {WORKERS_MAX}")


def failures() -> tuple[type[BaseException], ...]:
    """The errors with which a scenario fails: pytest has one that is no ``Exception``; that it skips is no failure."""
    pytest = sys.modules.get("pytest")
    return (Exception,) if pytest is None else (Exception, pytest.fail.Exception)


def runs_of(scenario: Scenario, plan: ScenarioPlan, seeds: Sequence[int], workers: int) -> Iterator[SeedRun]:
    """Run seeds in processes of their own, and yield the runs in the order of the seeds.

    A run that has failed is repeated in this process, where its error can be looked at; the same seed gives the same
    run in every process.  The first seed is always run here, too: what this process has replaced since its imports, as
    ``monkeypatch`` does, is not replaced in the others.

    Raises:
        UsageError: another process can't load the scenario.
        BrokenError: a process has died; or a run of a seed in another process is not the run that is made here.
    """
    try:
        task = pickle.dumps((scenario, plan))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        where = "whose scenario, invariants and settings are found by the names of their modules"
        raise UsageError(f"workers={workers}: a process needs a call {where}: {error}") from error
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(seeds)), mp_context=context)
    try:
        found = pool.map(functools.partial(_run, task), seeds)
        # The others work while the first seed runs here.
        first = run_one(scenario, plan, seeds[0], plan.faults_of(seeds[0]), failures=failures())
        for run, failed in found:
            if run.seed == first.seed:
                yield _compared(run, failed, first)
            else:
                yield _repeated(scenario, plan, run, failed) if failed else run
    except BrokenProcessPool as error:
        hint = 'a program that calls simulate(workers=...) has the line if __name__ == "__main__": before the call'
        raise BrokenError(f"a process that ran seeds has died; {hint}") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _compared(run: SeedRun, failed: str, here: SeedRun) -> SeedRun:
    """Return the run of a seed in this process, which must be that of another process."""
    told = _told(here.error)
    # The text of an error may well have the address of an object.
    if (run.trace, failed.partition(":")[0]) == (here.trace, told.partition(":")[0]):
        return here
    text = (
        f"seed {run.seed} is not the same run in another process ({failed or 'passed'}) and here ({told or 'passed'})"
    )
    why = "another process imports all anew, without what was replaced or set here; or a run needs more than its seed"
    raise BrokenError(f"{text}: {why}") from here.error


def _repeated(scenario: Scenario, plan: ScenarioPlan, run: SeedRun, failed: str) -> SeedRun:
    """Run a seed here that has failed in another process."""
    again = run_one(scenario, plan, run.seed, run.faults, failures=failures())
    if again.error is None:
        why = "so it depends on more than its seed"
        text = f"seed {run.seed} failed in another process and not in this one, {why}: {failed}"
        raise BrokenError(text) from AssertionError(failed)
    return again


def _told(error: BaseException | None) -> str:
    """Return an error as text, empty for none."""
    return "" if error is None else f"{type(error).__name__}: {error}"


# -- in the other process


@functools.lru_cache(maxsize=1)
def _loaded(task: bytes) -> tuple[Scenario, ScenarioPlan]:
    try:
        scenario, plan = pickle.loads(task)
    except Exception as error:
        raise UsageError(f"a process of simulate(workers=...) can't load the scenario: {error!r}") from error
    return scenario, plan


def _run(task: bytes, seed: int) -> tuple[SeedRun, str]:
    """Run one seed; return the run without its error, which may be nothing that can be sent, and the error as text."""
    scenario, plan = _loaded(task)
    run = run_one(scenario, plan, seed, plan.faults_of(seed), failures=failures())
    failed = _told(run.error)
    return attrs.evolve(run, error=None, lines=[]), failed
