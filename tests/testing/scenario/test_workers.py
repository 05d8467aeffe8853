"""Seeds in several processes: the same report as in one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq.errors import BrokenError, SettingsError, UsageError
from meshq.testing import Cluster, SimulationReport, simulate

#: Each of them starts processes.
pytestmark = [pytest.mark.slow, pytest.mark.real]
SETTINGS: dict[str, Any] = {"nodes": 2, "queues": ["orders"], "duration": 5}


async def good(cluster: Cluster) -> None:
    """Orders are kept, whatever happens."""
    patient = {"initial_connect_attempts": float("inf"), "reconnect_attempts": float("inf")}
    async with cluster.client(**patient) as client:  # type: ignore[arg-type]
        for number in range(3):
            await client.send("orders", b"%d" % number, duplicate_id=f"order-{number}")
            await trio.sleep(cluster.rng.random())
    await cluster.healed()


async def odd(cluster: Cluster) -> None:
    """Seeds that are odd fail."""
    await trio.sleep(1)
    assert cluster.seed % 2 == 0, f"seed {cluster.seed} is odd"


async def elsewhere(cluster: Cluster) -> None:
    """Fails in any process but that of the test, as far as it is not the first seed."""
    await trio.sleep(1)
    if cluster.seed:
        assert multiprocessing.parent_process() is None, "this is no process of the test"


async def attempt(cluster: Cluster) -> None:
    """Do what a test puts something in the place of."""
    await trio.sleep(1)


async def calls_attempt(cluster: Cluster) -> None:
    """Do what the module has under a name."""
    await attempt(cluster)


async def fail(cluster: Cluster) -> None:
    """Fail after the same second."""
    await attempt_itself(cluster)
    raise ValueError("put in its place")


async def wait_longer(cluster: Cluster) -> None:
    """Pass with another trace."""
    await attempt_itself(cluster)
    await attempt_itself(cluster)


attempt_itself = attempt


async def dies(cluster: Cluster) -> None:
    """Its process dies, if it is not that of the test."""
    if multiprocessing.parent_process() is not None:
        os._exit(3)


def facts(report: SimulationReport) -> list[object]:
    return [report.seeds, report.counters, report.simulated_seconds, report.traces, report.empty]


def test_the_report_is_that_of_one_process() -> None:
    alone = simulate(good, seeds=5, **SETTINGS).check()
    shared = simulate(good, seeds=5, workers=2, **SETTINGS).check()
    assert facts(shared) == facts(alone)
    assert sum(shared.counters.values()) > 0


def test_a_failure_is_that_of_the_first_seed_that_fails_with_its_error() -> None:
    report = simulate(odd, seeds=6, workers=2, **SETTINGS)
    (failure,) = report.failures
    assert (report.seeds, failure.seed, failure.faults) == ([0, 1], 1, [])
    assert str(failure).startswith("seed 1 fails, with no fault at all: AssertionError: seed 1 is odd")
    assert type(failure.error) is AssertionError and failure.error.__traceback__ is not None
    assert [one.seed for one in simulate(odd, seeds=6, workers=3, stop_at=2, **SETTINGS).failures] == [1, 3]


def test_what_another_process_can_not_load_or_do_is_named() -> None:
    async def local(cluster: Cluster) -> None:
        pass

    with pytest.raises(UsageError, match=r"workers=2: a process needs a call whose scenario.*local"):
        simulate(local, workers=2, **SETTINGS)
    with pytest.raises(BrokenError, match=r"seed 1 failed in another process and not in this one, .* no process of"):
        simulate(elsewhere, seeds=2, workers=2, **SETTINGS)
    with pytest.raises(BrokenError, match="a process that ran seeds has died"):
        simulate(dies, seeds=2, workers=2, **SETTINGS)
    for wrong in (0, 1.5, True):
        with pytest.raises(SettingsError, match=r"workers=.* is not allowed; allowed: a number of processes from 1"):
            simulate(good, workers=wrong, **SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "found"), [(fail, r"\(passed\) and here \(ValueError"), (wait_longer, "not the same")]
)
def test_what_a_test_has_replaced_is_not_replaced_in_another_process(
    other: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "attempt", other)
    with pytest.raises(BrokenError, match=found):
        simulate(calls_attempt, seeds=2, workers=2, **SETTINGS)


PROGRAM = """
import trio
from meshq.testing import simulate

async def scenario(cluster):
    await trio.sleep(1)

if {guard}:
    print(len(simulate(scenario, seeds=4, nodes=1, faults="none", workers=2).check().traces))
"""


def test_a_program_shares_its_seeds_and_needs_a_guard(tmp_path: Path) -> None:
    def ran(guard: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(PROGRAM.format(guard=guard), encoding="utf-8")
        return subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran('__name__ == "__main__"').stdout == "4\n"
    assert 'has the line if __name__ == "__main__": before the call' in ran("True").stderr
