"""Files of results: a command never writes one of another kind, and says what is wrong before its work begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qa.backlog as backlog
import qa.filters as filters
import qa.fuzz.__main__ as fuzz
import qa.journal.crash_images as crash_images
import qa.kit_times as kit_times
import qa.large as large
import qa.matrix.check as matrix
import qa.mutants.__main__ as mutants
import qa.pairs.__main__ as pairs
import qa.quorum.__main__ as quorum
import qa.seed_runs as seed_runs
import qa.seeded.hunt as seeded
import qa.simulate as simulate
import qa.spark.__main__ as spark
import qa.spark.speed as speed
from qa import traces
from qa.results import RESULTS, ResultError, ResultFile, ResultFormat

ROOT = Path(__file__).parents[2]
#: The commands that write results, and what each needs to be told besides.
COMMANDS: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "backlog": (backlog.main, []),
    "crash_images": (crash_images.main, []),
    "filters": (filters.main, []),
    "fuzz": (fuzz.main, ["urls"]),
    "kit_times": (kit_times.main, []),
    "large": (large.main, []),
    "matrix": (matrix.main, ["--check"]),
    "mutants": (mutants.main, []),
    "pairs": (pairs.main, []),
    "quorum": (quorum.main, []),
    "seeded": (seeded.main, []),
    "simulate": (simulate.main, []),
    "traces": (traces.main, []),
}
#: The files that are there, and the commands that go on with them.
FILES: dict[str, ResultFormat] = {
    "backlog": backlog.FORMAT,
    "filters": filters.FORMAT,
    "fuzz": fuzz.FORMAT,
    "large": large.FORMAT,
    "matrix": matrix.FORMAT,
    "mutants": mutants.FORMAT,
    "pairs": pairs.FORMAT,
    "quorum": quorum.FORMAT,
    "seeded": seeded.FORMAT,
    "seeded-mesh": seeded.FORMAT,
    "seeded-roles": seeded.FORMAT,
    "seeds": seed_runs.FORMAT,
    "spark_mesh": spark.FORMAT,
    "spark_speed": speed.FORMAT,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of results of the place where commands are run; it is not there yet."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / RESULTS


def refused(command: str, *arguments: str) -> None:
    """Run a command, which ends with the exit status 2 before its work."""
    main, needed = COMMANDS[command]
    with pytest.raises(SystemExit) as ended:
        main([*needed, *arguments])
    assert ended.value.code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_a_file_of_another_kind(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ResultFile.prepare

    def prepare_and_end(file: ResultFile) -> None:
        prepare(file)
        raise AssertionError("the work would begin, which takes minutes")

    monkeypatch.setattr(ResultFile, "prepare", prepare_and_end)
    folder.mkdir(parents=True)
    file = folder / "main.json"
    file.write_text('{"kind": "benchmark", "format": 1, "runs": []}')
    refused(command, "--result", "main")
    said = capsys.readouterr().err
    assert "main.json holds results of the kind 'benchmark', and this command writes '" in said
    assert file.read_text() == '{"kind": "benchmark", "format": 1, "runs": []}'


@pytest.mark.parametrize("name", FILES)
def test_the_files_that_are_there_can_be_gone_on_with(name: str) -> None:
    path = ROOT / RESULTS / f"{name}.json"
    assert ResultFile(path, FILES[name]).read() == json.loads(path.read_text(encoding="utf-8"))


#: A format with runs in a list.
RUNS = ResultFormat("runs", parts="runs", part_fields={"images": int})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"kind": "ru', "is damaged: Unterminated string"),
        ("[]", "is damaged: it holds no object"),
        ('{"runs": []}', "holds results of the kind None"),
        ('{"kind": "runs", "format": 7, "runs": []}', "has the format 7, and this command knows 1"),
        ('{"kind": "runs", "format": 1}', "is damaged: it has no right 'runs'"),
        ('{"kind": "runs", "format": 1, "runs": [{"images": 1}, {}]}', "1 of its 'runs' has no right 'images'"),
        ('{"kind": "runs", "format": 1, "runs": [{"images": "1"}]}', "0 of its 'runs' has no right 'images'"),
        ('{"kind": "runs", "format": 1, "runs": [1]}', "0 of its 'runs' is no object"),
    ],
)
def test_a_file_that_can_not_be_gone_on_with_is_refused_by_name(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ResultError) as refusal:
        ResultFile(path, RUNS).prepare()
    assert str(path) in str(refusal.value) and problem in str(refusal.value)


def test_runs_with_other_settings_stay_and_a_write_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a folder" / "r.json"
    file = ResultFile(path, RUNS)
    file.prepare()
    for steps, images in ((1, 5), (2, 6), (1, 7)):
        file.put_run({"steps": steps}, {"steps": steps, "images": images})
    assert [(run["steps"], run["images"]) for run in file.read()["runs"]] == [(2, 6), (1, 7)]
    assert file.run_of({"steps": 2}) == {"steps": 2, "images": 6} and file.run_of({"steps": 3}) is None

    def fail(self: Path, target: Path) -> Any:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        file.write({"runs": []})
    assert len(file.read()["runs"]) == 2 and [*path.parent.iterdir()] == [path]


def test_a_command_makes_the_folder_or_says_that_it_can_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorum.main(["--schedules", "1", "--result", "q"]) == 0
    assert [file.name for file in folder.iterdir()] == ["q.json"]
    refused("quorum", "--result", "other/q")
    assert "'other/q' is no name of a file" in capsys.readouterr().err
    (folder / "q.json").unlink()
    folder.rmdir()
    folder.write_text("a file")
    refused("quorum", "--result", "q")
    assert f"the folder {RESULTS} can't be made: File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        ("crash_images", "--images 0", "argument --images: 0 is less than 1"),
        ("crash_images", "--resume", "name it by --result"),
        ("fuzz", "--replay not-there", "argument --replay: there is no file not-there"),
        ("mutants", "--number 0", "argument --number: 0 is less than 1"),
        ("mutants", "--resume", "name it by --result"),
        ("pairs", "--first -5", "argument --first: -5 is less than 0"),
        ("quorum", "--schedules some", "argument --schedules: 'some' is no whole number"),
        ("quorum", "--resume", "name it by --result"),
        ("simulate", "--seeds 0", "argument --seeds: 0 is less than 1"),
        ("traces", "--jobs 0", "argument --jobs: 0 is less than 1"),
        ("traces", "--seeds -1", "argument --seeds: -1 is less than 1"),
        ("traces", "--resume", "name it by --result"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    command: str, arguments: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(command, *arguments.split())
    assert problem in capsys.readouterr().err
