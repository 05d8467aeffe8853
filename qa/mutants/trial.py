"""Tests against a copy of the product: which tests run which line, and whether they notice a change.

Tests run in a fork of this process, which has imported pytest and all libraries, and neither the product nor a test: a
mutant costs the import of the product and those tests that run the changed line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from qa.mutants.units import ROOT

#: What the tests find beside the sources.
BESIDE: Final = (
    "tests",
    "qa",
    "tools",
    "docs",
    "examples",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)
#: Imported once, by the process that forks.
LIBRARIES: Final = (
    "hypothesis.stateful",
    "pytest_trio.plugin",
    "xdist.plugin",
    "trio.testing",
    "attrs",
    "coverage",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.x509",
    "msgpack",
    "trustme",
)
#: A test that takes so many times as much processor time as with the product itself does not end.
PATIENCE: Final = 10.0
#: Added to that.
MORE_S: Final = 3.0
#: A process that waits and does not compute is ended after so many seconds, and so many for each second of its tests.
WAITING_S: Final = 120.0
WAITING: Final = 20.0
#: Files of tests that are read first.
FIRST_FILES: Final = 2
#: A mutant that fills the memory fails.
MEMORY_BYTES_MAX: Final = 4 << 30


@attrs.frozen
class CoveredLines:
    """Which tests run which line, and how long each test takes."""

    #: By test, in seconds of the processor.
    seconds: dict[str, float]
    #: By file and line; the name of no test, "", is there for a line that runs while the tests are imported.
    tests: dict[str, dict[int, list[str]]]

    def of(self, path: str, line: int) -> dict[str, float]:
        """Return the tests that run a line, and how long each takes, the quickest first.

        A line inside of a statement may have none: then those of the statement above it are taken.  A line that runs
        while the tests are imported is for all of them to judge, such as one that makes a table.
        """
        lines = self.tests.get(path, {})
        names = lines.get(line, [])
        if "" in names:
            names = [*self.seconds]
        for above in range(line - 1, max(0, line - 12), -1):
            if names or "" in lines.get(above, []):
                # Above the head of a function is another one.
                break
            names = lines.get(above, [])
        return {name: self.seconds[name] for name in sorted(names, key=lambda name: (self.seconds[name], name))}


@contextmanager
def copy_of_the_product() -> Iterator[Path]:
    """Make a folder with a copy of the sources, and all that tests need beside them."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        folder = Path(directory)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in BESIDE:
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)
        yield folder


def noticed(folder: Path, tests: Mapping[str, float]) -> bool:
    """Run tests in a copy until one fails; returns whether one does, or does not end.

    ``tests``: names, in their order, and how many seconds of the processor each takes with the product itself.  To read
    all files takes longer than most tests, and those of the files with the most of them nearly always do.
    """
    by_file: dict[str, dict[str, float]] = {}
    for name, seconds in tests.items():
        by_file.setdefault(name.partition("::")[0], {})[name] = seconds
    files = sorted(by_file, key=lambda file: -len(by_file[file]))
    return any(_fails(folder, part, by_file) for part in (files[:FIRST_FILES], files[FIRST_FILES:]) if part)


def _fails(folder: Path, files: Sequence[str], by_file: Mapping[str, Mapping[str, float]]) -> bool:
    every = [pair for file in files for pair in by_file[file].items()]
    tests = dict(sorted(every, key=lambda pair: pair[1]))
    waits_s = WAITING_S + WAITING * sum(tests.values())
    return _in_a_fork(folder, lambda: _run(files, [_Chosen(tests)]), waits_s) != 0


def cover(folder: Path, files: Sequence[str], sources: Sequence[str]) -> CoveredLines:
    """Run the tests once against the unchanged product, and see which lines each of them runs.

    Raises:
        SystemExit: a test fails.
    """
    report = folder / "covered.json"
    if _in_a_fork(folder, lambda: _run(files, [_Measured(folder, sources, report)]), 3_600.0):
        raise SystemExit(f"the tests fail without any change: {' '.join(files)}")
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    tests = {path: {int(line): names for line, names in lines.items()} for path, lines in found["lines"].items()}
    return CoveredLines(found["seconds"], tests)


def _run(files: Sequence[str], plugins: Sequence[object]) -> int:
    # Libraries are there already, and their assertions are theirs.
    rewrite = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main(["-n0", "-x", "-q", "-m", "short", "-p", "no:cacheprovider", *rewrite, *files], plugins))


def _in_a_fork(folder: Path, work: Callable[[], int], waits_s: float) -> int:
    """Run work in a fork of this process whose product is that of a folder; returns its exit status, or -1."""
    if "meshq" in sys.modules:
        raise RuntimeError("this process has imported the product: a fork of it would not see a change")
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = _as_a_child(folder, work)
        finally:
            # Nothing of the parent's is closed, flushed or removed here.
            os._exit(status)
    until = time.monotonic() + waits_s
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                return -1
            time.sleep(0.02)
    finally:
        # Processes that a test has left belong to the child's group, and so does a child that goes on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _as_a_child(folder: Path, work: Callable[[], int]) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with open(os.devnull, "r+b") as nowhere:
        for descriptor in (0, 1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    os.chdir(folder)
    own = [str(folder / "src"), str(folder)]
    sys.path[:] = own + [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    sys.dont_write_bytecode = True
    return work()


class _Chosen:
    """Leaves all tests out but the named ones, and ends the process in one that computes for too long."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self._tests = tests
        self._order = {name: index for index, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = (item for item in items if item.nodeid in self._order)
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        # Nobody handles the signal: it ends the process.
        signal.setitimer(signal.ITIMER_PROF, MORE_S + PATIENCE * self._tests[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


class _Measured:
    """Measures which lines each test runs, with its set-up and tear-down."""

    def __init__(self, folder: Path, sources: Sequence[str], report: Path) -> None:
        from coverage import Coverage

        self._folder, self._sources, self._report = folder, sources, report
        self._seconds: dict[str, float] = {}
        self._coverage = Coverage(
            data_file=str(folder / "covered.data"), config_file=False, include=[str(folder / path) for path in sources]
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = round(time.process_time() - began, 4)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        data = self._coverage.get_data()
        lines = {path: data.contexts_by_lineno(str(self._folder / path)) for path in self._sources}
        self._report.write_text(json.dumps({"seconds": self._seconds, "lines": lines}), encoding="utf-8")
