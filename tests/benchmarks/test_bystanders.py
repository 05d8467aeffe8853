"""What others do while something is measured is seen, and a disturbed run does not count."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks import bystanders, runner
from benchmarks.bystanders import Bystanders
from benchmarks.processes import BenchmarkError
from benchmarks.workload import Workload

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def played(monkeypatch: pytest.MonkeyPatch, *states: tuple[float, float, float]) -> None:
    """Let the machine have used so much, we of it so much, and the clock say so much, at each look."""
    looks: Iterator[tuple[float, float, float]] = iter(states)
    monkeypatch.setattr(bystanders, "_used", lambda: next(looks))
    monkeypatch.setattr(bystanders.os, "cpu_count", lambda: 2)


@pytest.mark.parametrize(
    ("busy", "own", "percent"), [(10.0, 10.0, 0.0), (11.0, 10.0, 5.0), (20.0, 10.0, 50.0), (9.9, 10.0, 0.0)]
)
def test_what_is_not_ours_is_somebody_elses(
    monkeypatch: pytest.MonkeyPatch, busy: float, own: float, percent: float
) -> None:
    played(monkeypatch, (5.0, 1.0, 100.0), (5.0 + busy, 1.0 + own, 110.0))
    with Bystanders() as others:
        pass
    assert others.percent == pytest.approx(percent)


@pytest.mark.real
def test_a_child_that_was_waited_for_is_ours() -> None:
    before = bystanders._used()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    busy, own, _ = (after - was for after, was in zip(bystanders._used(), before, strict=True))
    assert own >= 0.3
    assert busy >= 0.2


class Disturbed:
    """In place of ``measure``: the share of others, run by run."""

    def __init__(self, *percents: float) -> None:
        self.percents = list(percents)

    def __call__(self, system: str, workload: Workload) -> dict[str, float]:
        return {"rate": 1.0, "foreign_percent": self.percents.pop(0)}


def test_a_disturbed_run_is_repeated_and_in_the_end_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "QUIET_SECONDS", 0.0)
    runs = Disturbed(50, 11, 10, 3)
    monkeypatch.setattr(runner, "measure", runs)
    assert runner.measure_undisturbed("ours", Workload())["foreign_percent"] == 10
    assert runs.percents == [3]
    monkeypatch.setattr(runner, "measure", Disturbed(*[90] * runner.QUIET_ATTEMPTS))
    with pytest.raises(BenchmarkError, match="others use more than 10"):
        runner.measure_undisturbed("ours", Workload())
