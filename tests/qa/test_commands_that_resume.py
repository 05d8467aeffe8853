"""The commands that show traces and crash images go on where they were interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

import qa.journal.crash_images as crash_images
from qa import traces
from qa.seeds import SeedReport


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, in which the commands are run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results").mkdir(parents=True)
    return tmp_path / "docs/results"


def written(path: Path) -> list[dict[str, Any]]:
    """The runs of a file of results."""
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def report(seed: int, trace: int) -> SeedReport:
    """A report of a seed that has passed."""
    return SeedReport(
        seed=seed,
        caught_by=(),
        failure="",
        trace=trace,
        simulated_s=1.0,
        cpu_s=0.5,
        turns=7,
        confirmed=1,
        faults=1,
        counters={},
        abandoned=False,
    )


def test_a_seed_with_two_stories_is_told_and_the_run_goes_on_where_it_was(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def run(seeds: range, jobs: int, stage: str) -> tuple[list[SeedReport], list[SeedReport]]:
        asked.extend(seeds)
        return [report(seed, seed) for seed in seeds], [report(seed, seed + (seed == 21)) for seed in seeds]

    monkeypatch.setattr(traces, "twice", run)
    assert traces.main(["--seeds", "20", "--result", "t"]) == 0
    assert traces.main(["--seeds", "23", "--result", "t", "--resume"]) == 1
    assert traces.main(["--stage", "mesh", "--seeds", "1", "--result", "t"]) == 0
    broker, mesh = written(results / "t.json")
    assert (broker["seeds"], broker["different"], broker["cpu_s"]) == (23, [21], 23.0)
    assert (mesh["stage"], mesh["seeds"], mesh["different"]) == ("mesh", 1, [])
    assert asked == [*range(23), 0]
    assert "seed 21 has two stories" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"turns": 8}, {"caught_by": ("Q1",)}, {"trace": 6}])
def test_two_reports_of_a_seed_are_unlike_if_trace_turns_or_findings_are(change: dict[str, Any]) -> None:
    one = report(3, 5)
    assert traces.different([one], [one]) == []
    assert traces.different([one], [attrs.evolve(one, **change)]) == [3]


@pytest.mark.slow
def test_seeds_have_one_story_with_other_hashes_of_strings() -> None:
    ones, others = traces.twice(range(2), 1, "grouping")
    assert len({report.trace for report in ones}) == 2
    assert traces.different(ones, others) == []


def test_lives_are_tried_until_there_were_so_many_images(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[int, bool, bool]] = []

    def run(one: crash_images.CrashImages) -> crash_images.CrashImages:
        tried.append((one.seed, one.checkpoints, bool(one.keys)))
        return attrs.evolve(one, images=60, nested=40, moments=3)

    monkeypatch.setattr(crash_images.CrashImages, "run", run)
    assert crash_images.main(["--images", "150", "--result", "c"]) == 0
    assert crash_images.main(["--images", "201", "--result", "c", "--resume"]) == 0
    assert crash_images.main(["--images", "100", "--steps", "3", "--result", "c", "--resume"]) == 0
    found, short = written(results / "c.json")
    assert (short["steps"], short["lives"]) == (3, 1), "lives of other steps are another run"
    assert found["steps"] == 30
    assert (found["lives"], found["images"], found["inside_recovery"], found["moments"]) == (3, 180, 120, 9)
    assert tried == [(2, True, False), (3, False, True), (4, True, False), (2, True, False)]
    assert "3 lives, 180 images, 120 inside recoveries" in capsys.readouterr().out
