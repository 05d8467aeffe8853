"""Nothing is left running, or on the disk, by a test that failed or by a run that was interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sweeper import PROC, read

pytestmark = [pytest.mark.real, pytest.mark.processes]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@pytest.fixture(name="folder")
def _folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path in it has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        yield Path(name)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run of its own with everything temporary in ``folder``, by which its processes are known."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MESHQ_"))}
    (folder / "t").mkdir()
    (folder / "started").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**env, "COLUMNS": "300", "TMPDIR": str(folder / "t"), "STARTED": str(folder / "started")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes(folder: Path) -> list[int]:
    """Every process that knows the folder."""
    mark = f"={folder}/".encode()
    return [int(path.name) for path in PROC.glob("[0-9]*") if mark in read(path / "environ")]


def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_nothing_is_left(folder: Path) -> None:
    """Nothing runs, and nothing lies there, a moment after a run has ended."""
    until(lambda: not processes(folder))
    assert list((folder / "t").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGKILL, 2), (signal.SIGTERM, 2), (signal.SIGINT, 0), (signal.SIGKILL, 0)]
)
def test_a_run_that_is_killed_in_the_middle_leaves_no_process_and_no_file(
    number: signal.Signals, workers: int, folder: Path
) -> None:
    with start(folder, f"-n{workers}", "tests/runs/never_ending.py") as run:
        while len(list((folder / "started").iterdir())) < max(1, workers):
            assert run.poll() is None, run.communicate()
            time.sleep(0.01)
        # The run and its workers, a broker with its two helpers and two sleepers in each, the sweeper.
        assert len(processes(folder)) >= 1 + workers + 5 * max(1, workers) + 1
        run.send_signal(number)
        run.communicate(timeout=PATIENCE_S)
    check_nothing_is_left(folder)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_test_that_leaves_something_has_failed_and_nothing_of_it_stays(workers: int, folder: Path) -> None:
    with start(folder, f"-n{workers}", "tests/runs/untidy.py") as run:
        said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert re.search(r"ERROR \S+::test_that_leaves_a_process - Failed: left behind: process \d+:", said)
    assert re.search(r"ERROR \S+::test_that_leaves_a_folder - Failed: left behind: file untidy-", said)
    assert re.search(r"FAILED \S+::test_that_fails_and_leaves_both", said)
    assert "test_that_leaves_nothing" not in said
    assert re.search(r"1 failed, 3 passed, 3 errors", said)
    check_nothing_is_left(folder)
