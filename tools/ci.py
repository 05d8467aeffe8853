"""What CI does, from fresh environments; a shell starts it: ./.ci/run

First the README's own test command, as it stands there, on all cores.  Then the tier of a submission, which is every
test that the README's command leaves out, the linter, the types, the docs and the demo from a wheel in an empty folder.
Each of these steps keeps one core busy and has one core, the longest step first, so that no core is idle before the
last one ends; steps that mostly wait run beside them.  The last line of the output is the count of the tests of all
runs together.  An interrupted run ends its own processes and removes its folder.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as tree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: What Debian packages was compiled along a profile.  What a manager of versions has compiled often was not, and takes
#: longer.
DEBIANS = "/usr/bin/python3"
PYTHON = os.environ.get("PYTHON") or shutil.which(DEBIANS) or "python3"
#: What Debian's package of ZooKeeper brings: its servers have no command of their own.
ZOOKEEPER = "/usr/share/java/zookeeper.jar"
CORES = len(os.sched_getaffinity(0))
#: Twice as long as all of it may take on two cores: a slow machine has the time, and what hangs has an end.
LIMIT_S = 4_800.0
#: An interrupted run of tests may tell so long what has failed.
PATIENCE_S = 60.0


class Tests(NamedTuple):
    """Tests of one tier of tests/tiers.py that run in one process."""

    name: str
    tier: str
    #: The folder in which its files are looked for, or its one file.
    place: str


#: They keep one core busy.  The longest come first: each core takes the next as soon as it is free.
ONE_CORE = (
    Tests("seeds-mesh", "seeds", "tests/seeds/test_two_hundred_seeds_of_a_mesh.py"),
    # Every other file of the tier, also one that is new.
    Tests("seeds", "seeds", "tests/seeds"),
    Tests("slow", "slow", "tests"),
    Tests("seeds-broker", "seeds", "tests/seeds/test_hundred_seeds.py"),
    Tests("exhaustive", "exhaustive", "tests"),
    Tests("seeded_bugs", "seeded_bugs", "tests/qa"),
    Tests("matrix", "matrix", "tests/matrix"),
    Tests("rules", "rules", "tests"),
    Tests("examples", "examples", "tests"),
)
#: They wait for processes, for disks and for time: one after the other, beside whatever keeps the cores busy.
WAITING = (
    Tests("processes", "processes", "tests"),
    Tests("spark", "spark", "tests/real/spark"),
    Tests("demo", "demo", "tests"),
)


class Steps:
    """Runs the steps: each is quiet when it succeeds, and shows all of its output when it fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed = False
        self._began = time.monotonic()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._over = False
        self._lock = threading.RLock()
        pip = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        # Most of what is installed is never imported, and the rest is compiled when it is.
        pip["PIP_NO_COMPILE"] = "1"
        # What is compiled is kept for the many processes that follow, and not among the sources.
        self.environment = {**os.environ, **pip, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        # With this, which images of containers set, each of those processes would compile all that it imports.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, name: str, *command: str | Path, cwd: Path = ROOT, limit_s: float = LIMIT_S, **env: str) -> bool:
        """Carry out one step; returns whether it succeeded."""
        began = time.monotonic()
        log = self.folder / "log" / name
        with self._lock:
            if self._over:
                return False
            with log.open("wb") as output:
                process = subprocess.Popen(
                    list(map(str, command)),
                    cwd=cwd,
                    env={**self.environment, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._running[process.pid] = process
        try:
            status = process.wait(max(0.0, min(limit_s, self._began + LIMIT_S - began)))
        except subprocess.TimeoutExpired:
            # What does not come to its end is interrupted, so that what ran is counted, and what failed is told.
            status = self._interrupt(process)
        finally:
            with self._lock:
                del self._running[process.pid]
        if self._over:
            return False
        took = f"{time.monotonic() - began:.0f} s" if status == 0 else f"status {status}"
        self.say(name, status == 0, took, log.read_text(errors="replace"))
        return status == 0

    def say(self, name: str, good: bool, what: str, output: str) -> None:
        """Say how a step went."""
        self.failed = self.failed or not good
        print(f"{'ok      ' if good else 'FAILED  '}{name}, {what}{'' if good else chr(10) + output}", flush=True)

    def _interrupt(self, process: subprocess.Popen[bytes]) -> int:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return -signal.SIGINT

    def end(self) -> None:
        """Kill whatever still runs, with its children; sweepers of the tests remove what those have left."""
        with self._lock:
            self._over = True
            for pid in self._running:
                os.killpg(pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        """What a step has said."""
        log = self.folder / "log" / name
        return log.read_text(errors="replace") if log.exists() else ""


def from_readme(command: str) -> str:
    """The one line of the README that is this command: what runs here is what stands there."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (found,) = [line for line in lines if re.fullmatch(rf"pip install .*&& python -m {command}", line)]
    return found


def debian_packages(steps: Steps) -> bool:
    """What some tests need of the system; root installs what is missing."""
    # Without its package Debian's Python makes no environments.
    makes_them = subprocess.run([PYTHON, "-c", "import ensurepip"], capture_output=True).returncode == 0
    if makes_them and all(map(shutil.which, ("redis-server", "strace", "java"))) and Path(ZOOKEEPER).exists():
        return True
    packages = "redis-server strace iproute2 python3-venv openjdk-17-jre-headless zookeeper"
    install = f"apt-get update -qq && apt-get install -qq -y --no-install-recommends {packages}"
    return steps.run("debian-packages", "bash", "-c", install, DEBIAN_FRONTEND="noninteractive")


def environment(steps: Steps, name: str, *packages: str) -> bool:
    """An environment of its own, with packages."""
    where = steps.folder / name
    made = where.exists() or steps.run(f"{name}-environment", PYTHON, "-m", "venv", where)
    return made and (not packages or steps.run(f"{name}-packages", where / "bin/pip", "install", *packages))


def written(steps: Steps, name: str, *options: str) -> str:
    """How a run of tests writes down what ran."""
    return " ".join(("-q --no-header --durations=10", f"--junitxml={steps.folder / name}.xml", *options))


def readme_tests(steps: Steps) -> bool:
    """The README's command, in a fresh environment; what its tests cover is measured in the same run.

    The longer tiers are not measured: whatever must not surprise is tested in less than half a second.
    """
    path = f"{steps.folder / 'test/bin'}{os.pathsep}{os.environ['PATH']}"
    measured = {"PYTEST_ADDOPTS": written(steps, "readme", "-p", "tests.covered")}
    folder = str(steps.folder / "coverage")
    return steps.run("readme", "bash", "-c", from_readme("pytest"), PATH=path, MESHQ_COVERAGE=folder, **measured)


def files_of(tests: Tests) -> list[str]:
    """The files with these tests: to read the others as well takes longer than some tiers do.

    A file that is a step of its own belongs to no other.  ``tests/tiers.py`` sees to it that a file that has tests of a
    tier says so.
    """
    if tests.place.endswith(".py"):
        return [tests.place]
    alone = [other.place for other in ONE_CORE if other.tier == tests.tier and other is not tests]
    files = [
        path for path in sorted((ROOT / tests.place).rglob("test_*.py")) if str(path.relative_to(ROOT)) not in alone
    ]
    return [str(path.relative_to(ROOT)) for path in files if f"mark.{tests.tier}" in path.read_text(encoding="utf-8")]


def carry_out_tests(steps: Steps, tests: Tests) -> bool:
    """Tests of one tier, in one process; a test that starts more of them keeps one core busy."""
    command = (steps.folder / "all/bin/python", "-m", "pytest", "-n0", "-m", tests.tier, *files_of(tests))
    return steps.run(tests.name, *command, MESHQ_TEST_CORES="1", PYTEST_ADDOPTS=written(steps, tests.name))


def checks(steps: Steps) -> None:
    """Everything that reads rather than runs, and what the demo will need."""
    tools = steps.folder / "all/bin"
    html = ("-b", "html", "-d", steps.folder / "doctrees", "docs", steps.folder / "html")
    steps.run("ruff-check", tools / "ruff", "check")
    steps.run("ruff-format", tools / "ruff", "format", "--check")
    steps.run("mypy", tools / "mypy")
    steps.run("docs", tools / "sphinx-build", "-q", "-W", "--keep-going", *html)
    steps.run("changelog", tools / "towncrier", "build", "--draft", "--version", "0")
    if environment(steps, "demo"):
        steps.run("wheel", steps.folder / "demo/bin/pip", "wheel", "--no-deps", "-w", steps.folder, ".")


def demo(steps: Steps) -> bool:
    """The README's other command, with the wheel in place of the sources; what it leaves behind is a failure, too."""
    (wheel,) = steps.folder.glob("meshq-*.whl")
    command = from_readme("meshq demo").replace(".[demo]", f"{wheel}[demo]")
    path = f"{steps.folder / 'demo/bin'}{os.pathsep}{os.environ['PATH']}"
    whole = f"{command} && ! find . -mindepth 1 | grep ."
    return steps.run("demo", "bash", "-c", whole, cwd=steps.folder / "empty", limit_s=600.0, PATH=path)


def count(reports: Sequence[Path]) -> str:
    """The tests of all runs together."""
    suites = [suite for report in reports for suite in tree.parse(report).iter("testsuite")]
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return f"{total - failures - errors - skipped} passed, {failures + errors} failed, {skipped} skipped"


def submission(steps: Steps) -> None:
    """All of it."""
    debian_packages(steps)
    python = steps.folder / "all/bin/python"
    with ThreadPoolExecutor(1) as beside:
        # What the other steps need is fetched and unpacked meanwhile.
        everything = beside.submit(environment, steps, "all", "-e", ".[test-all,lint,docs,spark]")
        # Coverage of the README's tests is measured in the same run, and nothing else is added to what it installs.
        if environment(steps, "test", "coverage[toml]"):
            readme_tests(steps)
        if everything.result():
            waiting = [beside.submit(carry_out_tests, steps, tests) for tests in WAITING]
            with ThreadPoolExecutor(max(1, CORES)) as pool:
                one_core = [pool.submit(carry_out_tests, steps, tests) for tests in ONE_CORE]
                # Processor seconds are judged, and those are the same beside a step on another core.
                gate = pool.submit(steps.run, "tiers", python, "tools/tiers_gate.py", steps.folder / "readme.xml")
                for future in (*one_core, pool.submit(checks, steps), gate, *waiting):
                    future.result()
        # Alone, because its times are shown.
        demo(steps)
    reports = sorted(steps.folder.glob("*.xml"))
    steps.run("conformance", python, "tools/conformance.py", "gate", *reports)
    steps.run("coverage", python, "tools/coverage_gate.py", "--data", steps.folder / "coverage")
    print(*[steps.log(name) for name in ("conformance", "coverage", "tiers", "demo")], sep="", end="")
    print(count(reports), flush=True)


def carry_out(work: Callable[[Steps], None]) -> int:
    """Run the steps in a folder that is gone afterwards; the exit status."""

    folder = Path(tempfile.mkdtemp(prefix="meshq-ci-"))
    steps = Steps(folder)

    def interrupted(number: int, _: object) -> None:
        # Threads wait for the processes, and would be waited for.
        steps.end()
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        for name in ("log", "empty", "coverage"):
            (folder / name).mkdir()
        work(steps)
    finally:
        steps.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if steps.failed else 0


if __name__ == "__main__":
    sys.exit(carry_out(submission))
