"""A run of many seeds is written down as it goes, and goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qa.seed_runs import PART
from qa.seeds import SeedReport
from qa.simulate import main

SEEDS = 3 * PART + 5
COMMAND = ["--mesh", "--first", "200", "--seeds", str(SEEDS), "--jobs", "1", "--json", "--result", "seeds"]
FAILED = 207


@pytest.fixture
def seeds_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The seeds that are run, by a simulation that takes no time."""
    run: list[int] = []

    def one_seed(seed: int, stage: str) -> SeedReport:
        run.append(seed)
        return SeedReport(
            seed=seed,
            caught_by=("Q4",) if seed == FAILED else (),
            failure="twice there" if seed == FAILED else "",
            trace=seed,
            simulated_s=60.0,
            cpu_s=0.5,
            turns=1,
            confirmed=seed,
            faults=2,
            counters={"node.kill": 1, f"seen.{seed % 2}": 1},
            abandoned=False,
            stage=stage,
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qa.simulate.one_seed", one_seed)
    return run


def results() -> list[dict[str, Any]]:
    """The runs of the file of results."""
    runs: list[dict[str, Any]] = json.loads(Path("docs/results/seeds.json").read_text())["runs"]
    return runs


def interrupted_at(seed: int, one_seed: Callable[..., SeedReport]) -> Callable[..., SeedReport]:
    """A simulation during which the user has had enough."""

    def until(number: int, stage: str) -> SeedReport:
        if number == seed:
            raise KeyboardInterrupt
        return one_seed(number, stage)

    return until


def test_a_run_that_was_interrupted_goes_on_and_is_as_one_that_was_not(
    seeds_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(COMMAND) == 1
    with monkeypatch.context() as patched:
        patched.setattr("qa.simulate.one_seed", interrupted_at(200 + 2 * PART + 3, main.__globals__["one_seed"]))
        with pytest.raises(KeyboardInterrupt):
            main(COMMAND)
    assert [run["seeds"] for run in results()] == [SEEDS, 2 * PART]
    seeds_run.clear()
    assert main([*COMMAND, "--resume"]) == 1
    assert seeds_run == list(range(200 + 2 * PART, 200 + SEEDS))
    whole, resumed = results()
    assert resumed == whole
    assert [one["seed"] for one in resumed["failed"]] == [FAILED]
    assert (resumed["seeds"], resumed["stage"], resumed["first"], resumed["wanted"]) == (SEEDS, "mesh", 200, SEEDS)


def test_of_a_run_that_has_ended_nothing_is_left_and_its_status_is_told_again(seeds_run: list[int]) -> None:
    assert main(COMMAND) == 1
    assert main([*COMMAND, "--resume"]) == 1
    assert [run["seeds"] for run in results()] == [SEEDS]
    assert main(COMMAND) == 1
    assert [run["seeds"] for run in results()] == [SEEDS, SEEDS]
    assert len(seeds_run) == 2 * SEEDS


def test_other_seeds_are_a_run_of_their_own(seeds_run: list[int]) -> None:
    few = ["--mesh", "--seeds", str(PART), "--jobs", "1", "--json", "--result", "seeds", "--resume"]
    assert main([*few, "--first", "300"]) == main([*few, "--first", "400"]) == 0
    assert [(run["first"], run["seeds"]) for run in results()] == [(300, PART), (400, PART)]
    assert seeds_run == [*range(300, 300 + PART), *range(400, 400 + PART)]


def test_to_go_on_takes_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--resume"])
    assert "--resume goes on with what is in a result: name it by --result" in capsys.readouterr().err
