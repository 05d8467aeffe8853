"""Nothing is left running, or on the disk, by a test that failed or by a run that was interrupted.

A run has one folder for everything temporary, and each of its workers a folder in it.
After each test the test's processes and files are looked for: a test that leaves a process, or a file beside
those of ``tmp_path``, has failed.  What an interrupted run leaves the sweeper removes.
``--basetemp FOLDER`` keeps the files of the tests.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import sweeper
from tests.sweeper import MARK, children, command, descendants, kill, remove, runs, start_sweeper

#: The folders of runs are named so; short, since the path of a socket has at most 107 bytes.
PREFIX = "meshq-"
#: Helpers of the interpreter, which end with the interpreter; and the sweeper, which ends after it.
HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker", sweeper.__file__)
#: The session of Spark that many tests share, with all that it starts: it goes with the run.
SESSION = "org.apache.spark.deploy.SparkSubmit"


class LeftBehind:
    """Compares what there is before and after each test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: frozenset[int] = frozenset()
        self._names: frozenset[str] = frozenset()
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None

    def _running(self) -> dict[int, str]:
        """The processes below this one and their commands, without helpers and zombies."""
        found = {}
        for child in children(os.getpid()):
            said = command(child)
            if SESSION in said:
                continue
            if not any(name in said for name in HELPERS):
                found[child] = said
            # What a helper has forked is called like the helper.
            found |= {pid: command(pid) for pid in descendants(child)}
        return {pid: said for pid, said in found.items() if runs(pid)}

    def _present(self) -> frozenset[str]:
        """The names in the folder, without the folders of every ``tmp_path`` and of the interpreter's helpers."""
        return frozenset(name for name in os.listdir(self._folder) if not name.startswith(("pytest-of-", "pymp-")))

    def before(self) -> None:
        """Remember what there is before a test."""
        self._processes = frozenset(self._running())
        self._names = self._present()

    def after(self) -> list[str]:
        """Remove what a test has left, and say what that was."""
        left = []
        for pid, said in self._running().items():
            if pid not in self._processes:
                left.append(f"process {pid}: {said}")
                kill(pid)
        for name in sorted(self._present() - self._names):
            left.append(f"file {name}")
            remove(self._folder / name)
        return left

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        """Look after the fixtures of a test: those of a module stay for the tests that follow."""
        try:
            return (yield)
        finally:
            self.before()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        """Look after the fixtures of a test."""
        try:
            return (yield)
        finally:
            left = self.after()
            if left:
                pytest.fail(f"left behind: {'; '.join(left)}", pytrace=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        """End the processes of an interrupted test, which the interpreter would wait for; the rest is the sweeper's."""
        for pid in self._running():
            kill(pid)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin before any worker is started, so that workers inherit the mark."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        started = start_sweeper(folder)
        os.environ[MARK] = str(folder)
        # The end of its input is the end of this process, however that ends.
        config.stash[SWEEPER] = started
    else:
        folder = Path(os.environ[MARK]) / worker["workerid"]
        folder.mkdir()
    config.pluginmanager.register(LeftBehind(folder), "left-behind of this process")


SWEEPER = pytest.StashKey[Any]()
