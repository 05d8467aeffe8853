"""The simulated broker through a minute of faults: a seed is one run, and the command tells its story."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshq.store.commit._replication import Replication
from qa.seeds import one_seed, report_of
from qa.simulate import main, record, recorded
from qa.simulation.faults import FAULTS_MIN, KINDS, STORAGE_FAULTS
from qa.simulation.scenario import SENDS_MIN, run_seed
from tests.checkout import checkout_environment
from tests.qa.planted import brief, brief_seed, first_report


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from tests.qa.planted import brief_seed; report = brief_seed(3, 'broker'); "
        "print(report.trace, report.confirmed)"
    )
    environment = checkout_environment(PYTHONHASHSEED="4711")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = brief_seed(3, "broker")
    assert done.stdout.split() == [str(here.trace), str(here.confirmed)]
    assert brief_seed(4, "broker").trace != here.trace


@pytest.mark.slow
def test_a_failing_seed_prints_the_one_line_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Nothing can be confirmed so soon.
    monkeypatch.setattr("qa.simulation.accounts.HEALING_S", 0.0)
    seeds = tmp_path / "failed_seeds.txt"
    with brief("broker"):
        assert main(["--seeds", "2", "--first", "5", "--jobs", "1", "--hunt", "--record", str(seeds)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 5 Q14: Q14: no barrier send was confirmed")
    assert lines[0].endswith(" -- python -m qa.simulate --seed 5")
    assert lines[2].startswith("2 seeds, 2 failed: ")
    assert recorded(seeds) == [5, 6]
    with brief("broker"):
        record(seeds, report_of(run_seed(5), 0.0))
        assert recorded(seeds) == [5, 6]
        assert main(["--seed", "5"]) == 1
    assert "seed 5 FAILED: Q14" in capsys.readouterr().out


@pytest.mark.slow
def test_a_broker_of_which_only_disk_and_power_fail_keeps_every_promise_in_a_run_of_its_own() -> None:
    report = one_seed(3, "storage")
    assert report.passed, report.line
    met = [kind.removeprefix("fault.") for kind, number in report.counters.items() if "fault." in kind and number]
    assert len(met) >= 2 and set(met) <= set(STORAGE_FAULTS)
    assert report.faults >= FAULTS_MIN and report.confirmed >= SENDS_MIN
    assert report.line.endswith(" -- python -m qa.simulate --seed 3 --storage")


@pytest.mark.slow
def test_a_broker_that_has_to_step_back_keeps_every_promise_in_a_run_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = brief_seed(3, "turns")
    assert report.passed, report.line
    assert report.counters["fault.step_back"] >= report.counters["seen.waiting"] >= 1
    assert report.line.endswith(" -- python -m qa.simulate --seed 3 --turns")
    with brief("turns"):
        assert main(["--turns", "--seed", "3"]) == 0
    assert "the broker steps back at once" in capsys.readouterr().out


@pytest.mark.slow
def test_a_journal_that_counts_only_its_own_disk_is_caught_by_the_partners_checker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replication, "durable", property(lambda replication: replication.synced))
    first_report("replicated", "R1")


@pytest.mark.slow
def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    with brief("broker"):
        assert main(["--seed", "5"]) == 0
    story = capsys.readouterr().out
    assert "the broker is started again" in story
    assert "seed 5 passed: " in story


@pytest.mark.slow
def test_the_command_adds_its_run_to_a_file_of_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for first in ("0", "1"):
        with brief("broker"):
            assert main(["--seeds", "1", "--first", first, "--jobs", "1", "--json", "--result", "few"]) == 0
        assert json.loads(capsys.readouterr().out)["failed"] == []
    result = json.loads((tmp_path / "docs/results/few.json").read_text())
    assert [run["seeds"] for run in result["runs"]] == [1, 1]
    run = result["runs"][1]
    assert run["command"].endswith("simulate --seeds 1 --first 1 --jobs 1 --json --result few")
    assert run["confirmed_sends"] > 50
    assert run["counters"] == dict(brief_seed(1, "broker").counters)
    assert sum(run["counters"][f"fault.{kind}"] for kind in KINDS) > 0
    assert {"commit", "date", "cores", "versions"} <= run.keys()
