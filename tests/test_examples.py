"""The programs in examples/ run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints; it must end well and quietly, and sees every warning as an error."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "quick_start.py",
        "over_the_network.py",
        "journal_alone.py",
        "without_async.py",
    }


def test_the_quick_start_finds_its_queue_again(tmp_path: Path) -> None:
    assert run("quick_start.py", tmp_path).split() == ["umbrella", "for", "emea"]
    assert run("quick_start.py", tmp_path).split()[0] == "raincoat"


def test_over_the_network_every_measurement_is_taken_once(tmp_path: Path) -> None:
    assert run("over_the_network.py", tmp_path) == "2000 measurements taken, 2000 different\n"


def test_without_async_every_measurement_is_taken_once(tmp_path: Path) -> None:
    assert run("without_async.py", tmp_path) == "2000 measurements taken, 2000 different\n"


def test_the_journal_keeps_a_list(tmp_path: Path) -> None:
    position = run("journal_alone.py", tmp_path, "add", "buy milk").split()[1]
    run("journal_alone.py", tmp_path, "add", "mend the roof")
    run("journal_alone.py", tmp_path, "done", position)
    (line,) = run("journal_alone.py", tmp_path, "list").splitlines()
    assert line.endswith("mend the roof")
