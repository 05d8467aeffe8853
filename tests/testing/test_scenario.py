"""The simulated broker through a minute of faults: two hundred seeds, always the same, and each that ever failed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from meshq.testing._disk_faults import KINDS as DISK_KINDS
from meshq.testing._network import EFFECTS
from meshq.testing._network import FAULTS as NETWORK_FAULTS
from qa.seeds import SeedReport, many_seeds, one_seed, report_of
from qa.simulate import SEEDS, main, record, recorded
from qa.simulation.broker import SIGHTS
from qa.simulation.faults import FAULTS_MIN, KINDS
from qa.simulation.scenario import DURATION_S, SENDS_MIN, run_seed
from qa.simulation.users import USER_SIGHTS
from qa.simulation.workload_sifted import SIFTED_SIGHTS
from qa.simulation.workload_undertaker import UNDERTAKER_SIGHTS
from tests.checkout import checkout_environment

ROOT = Path(__file__).parents[2]
#: Every failpoint of the product; the rule below finds one that is not listed.
FAILPOINTS = (
    "broker.costly",
    "broker.drop_connection",
    "broker.late_step",
    "broker.no_block",
    "client.small_runs",
    "journal.batch_of_one",
    "journal.compact_early",
    "journal.lazy_long",
    "journal.roll_early",
    "journal.thread_always",
)
#: What happened besides, as the broker and the disk tell it.
CONSEQUENCES = (
    "disk.create.EMFILE",
    "disk.create.ENFILE",
    "disk.create.ENOSPC",
    "disk.sync.EIO",
    "disk.write.EIO",
    "disk.write.ENOSPC",
    "seen.damage_found_later",
    "seen.harmless_damage",
    "seen.refused_damage",
    "seen.store_apart",
    "seen.waited_for_descriptors",
)
#: What those meet who are there in some seeds only.
CAST_SIGHTS = (*USER_SIGHTS, *UNDERTAKER_SIGHTS, *SIFTED_SIGHTS)
#: What is done to the broker when its minute is over.
LAST_SIGHTS = ("damaged_indexes", "power_after_a_repeat")
#: What can't happen here, and why.
IMPOSSIBLE = {"network.timed_out": "a client gives a connection attempt up long before its system does"}

pytestmark = pytest.mark.xdist_group("seeds")


@pytest.mark.timeout(1500)
def test_every_promise_is_kept_in_two_hundred_seeds_that_meet_every_fault() -> None:
    # One test, so that the seeds are run once however tests are handed out; two processes of its own.
    seeds = dict.fromkeys([*range(SEEDS), *recorded(ROOT / "tests/data/failed_seeds.txt")])
    reports = list(many_seeds(seeds, jobs=2))
    assert len(reports) >= SEEDS == 200
    failed = [report.line for report in reports if not report.passed]
    assert not failed, "\n".join(failed)
    check_minimums(reports)
    met = check_all_was_met(reports, KINDS, sights=(*SIGHTS, *CAST_SIGHTS, *LAST_SIGHTS))
    assert [kind for kind in IMPOSSIBLE if met.get(kind)] == []


def check_minimums(reports: list[SeedReport]) -> None:
    """Each seed lasts a minute and confirms hundreds of sends through several faults."""
    assert (DURATION_S, SENDS_MIN, FAULTS_MIN) == (60.0, 300, 3)
    for report in reports:
        assert report.simulated_s >= DURATION_S, report.seed
        assert report.confirmed >= SENDS_MIN, report.seed
        assert report.faults >= FAULTS_MIN, report.seed
        assert not report.abandoned, report.seed


def check_all_was_met(
    reports: list[SeedReport], kinds: Sequence[str], *, sights: Sequence[str] = SIGHTS
) -> dict[str, int]:
    """Every fault and every failpoint happened in some seed, and none that nobody knows of; how often each did."""
    expected = [f"fault.{kind}" for kind in kinds]
    expected += [f"chaos.{point}" for point in FAILPOINTS]
    expected += [f"network.{kind}" for kind in (*NETWORK_FAULTS, *EFFECTS)]
    expected += [f"seen.{sight}" for sight in sights]
    expected += [*DISK_KINDS, *CONSEQUENCES, "node.kill", "node.pause", "node.power_off"]
    met: dict[str, int] = {}
    for report in reports:
        for kind, number in report.counters.items():
            met[kind] = met.get(kind, 0) + number
    assert [kind for kind in expected if not met.get(kind) and kind not in IMPOSSIBLE] == []
    assert [kind for kind in met if kind not in expected] == []
    return met


def test_every_failpoint_of_the_product_is_listed() -> None:
    product = [path for path in (ROOT / "src" / "meshq").rglob("*.py") if path.parent.name != "testing"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in product)
    missing = [point for point in FAILPOINTS if f'failpoint("{point}")' not in text]
    assert not missing
    assert text.count('failpoint("') == len(FAILPOINTS)


def test_a_seed_is_the_same_run_in_another_process_with_another_hash_seed() -> None:
    code = "from qa.seeds import one_seed; report = one_seed(3); print(report.trace, report.confirmed)"
    environment = checkout_environment(PYTHONHASHSEED="4711")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = one_seed(3)
    assert done.stdout.split() == [str(here.trace), str(here.confirmed)]
    assert one_seed(4).trace != here.trace


def test_a_failing_seed_prints_the_one_line_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Nothing can be confirmed so soon.
    monkeypatch.setattr("qa.simulation.accounts.HEALING_S", 0.0)
    seeds = tmp_path / "failed_seeds.txt"
    assert main(["--seeds", "2", "--first", "5", "--jobs", "1", "--hunt", "--record", str(seeds)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 5 Q14: Q14: no barrier send was confirmed")
    assert lines[0].endswith(" -- python -m qa.simulate --seed 5")
    assert lines[2].startswith("2 seeds, 2 failed: ")
    assert recorded(seeds) == [5, 6]
    record(seeds, report_of(run_seed(5), 0.0))
    assert recorded(seeds) == [5, 6]
    assert main(["--seed", "5"]) == 1
    assert "seed 5 FAILED: Q14" in capsys.readouterr().out


def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5"]) == 0
    story = capsys.readouterr().out
    assert "the broker is started again" in story
    assert "seed 5 passed: " in story


def test_the_command_adds_its_run_to_a_file_of_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for first in ("0", "1"):
        assert main(["--seeds", "1", "--first", first, "--jobs", "1", "--json", "--result", "few"]) == 0
        assert json.loads(capsys.readouterr().out)["failed"] == []
    result = json.loads((tmp_path / "docs/results/few.json").read_text())
    assert [run["seeds"] for run in result["runs"]] == [1, 1]
    run = result["runs"][1]
    assert run["command"].endswith("simulate --seeds 1 --first 1 --jobs 1 --json --result few")
    assert run["confirmed_sends"] >= SENDS_MIN
    assert run["counters"] == dict(one_seed(1).counters)
    assert sum(run["counters"][f"fault.{kind}"] for kind in KINDS) >= FAULTS_MIN
    assert {"commit", "date", "cores", "versions"} <= run.keys()
