"""The outer end of benchmark processes: started, spoken to within a time limit, and never left behind.

Every process is a direct child, killed by its own id when the block ends, and killed by the kernel should the
benchmark itself be killed (``PR_SET_PDEATHSIG``), so neither Ctrl-C nor ``kill -9`` leaves one running.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

from benchmarks.workload import Workload

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
#: Between the end of the work and the exit of its process.
EXIT_SECONDS = 10.0
#: From the start of an interpreter until it listens.
START_SECONDS = 60.0
ROOT = Path(__file__).resolve().parent.parent


class BenchmarkError(Exception):
    """A process failed or took too long; its error output is in the message."""


def _dies_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: between fork and exec only the call itself is safe
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One child process that speaks JSON lines; use it as a context manager."""

    def __init__(
        self, command: Sequence[str], *, name: str, directory: Path, product: str = "", quiet: bool = False
    ) -> None:
        """``quiet``: what it writes to its output is nobody's business."""
        self.name = name
        self.errors = directory / f"{name}.stderr"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), product or str(ROOT / "src")])}
        with self.errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
                stderr=errors,
                cwd=directory,
                env=environment,
                preexec_fn=_dies_with_parent(),
            )
        self.pid = self._popen.pid
        self._unread = b""

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def tell(self, **facts: object) -> None:
        """One line to the child."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(facts).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise BenchmarkError(self._report("ended early")) from None

    def hear(self, timeout: float) -> dict[str, Any]:
        """The next line from the child."""
        assert self._popen.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BenchmarkError(self._report(f"said nothing for {timeout:.0f} s"))
                data = os.read(self._popen.stdout.fileno(), 65_536)
                if not data:
                    raise BenchmarkError(self._report("ended early"))
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        facts: dict[str, Any] = json.loads(line)
        return facts

    def result(self, timeout: float) -> dict[str, Any]:
        """What the child's role returned, and its exit."""
        facts: dict[str, Any] = self.hear(timeout)["result"]
        try:
            self._popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(self._report("did not exit")) from None
        return facts

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; silent when it already is."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def terminate(self) -> None:
        """SIGTERM, and wait; for servers that are not ours."""
        self._popen.terminate()
        try:
            self._popen.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _report(self, what: str) -> str:
        tail = self.errors.read_text(errors="replace")[-3_000:]
        return f"{self.name} (status {self._popen.poll()}) {what}\n{tail}"


def python(module: str, role: str, workload: Workload, *, directory: Path) -> Process:
    """A benchmark role in an interpreter of its own."""
    command = [sys.executable, "-m", module, role, json.dumps(attrs.asdict(workload))]
    name = f"{module.rpartition('.')[2]}-{role}"
    return Process(command, name=name, directory=directory, product=workload.product)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one run, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="meshq-benchmark-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def process_facts(pid: int) -> Mapping[str, Any]:
    """Memory in bytes of a process; and by thread its CPU seconds (to the nanosecond) and wake-ups."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))
    threads: dict[str, tuple[float, int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu = int((task / "schedstat").read_text().split()[0]) / 1e9
        lines = (task / "status").read_text().splitlines()
        wakeups = sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:"))
        threads[task.name] = (cpu, wakeups)
    return {"rss": rss, "threads": threads}


def used_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, int]:
    """CPU seconds and wake-ups between two looks at a process; a thread that ended in between takes its share along."""
    cpu, wakeups = 0.0, 0
    for name, (spent, woken) in after["threads"].items():
        spent_before, woken_before = before["threads"].get(name, (0.0, 0))
        cpu += spent - spent_before
        wakeups += woken - woken_before
    return cpu, wakeups
