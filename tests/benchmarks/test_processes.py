"""Benchmark processes end with the benchmark, whatever ends it, and can't hold it up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.processes import ROOT, BenchmarkError, Process, process_facts, scratch, used_between

pytestmark = pytest.mark.real

#: It does not notice by itself that its parent is gone.
SLEEPER = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(60)"]
#: Far more than a process needs to start or die.
PATIENCE = 20.0


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie that waits for its parent does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    deadline = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_a_process_is_gone_when_its_block_ends(tmp_path: Path) -> None:
    with Process(SLEEPER, name="sleeper", directory=tmp_path) as process:
        assert process.hear(PATIENCE) == {}
        assert alive(process.pid)
    assert not alive(process.pid)


def test_a_process_is_gone_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Process(SLEEPER, name="sleeper", directory=tmp_path) as process:
        raise ZeroDivisionError
    assert not alive(process.pid)


def test_a_silent_process_ends_the_wait_and_is_named(tmp_path: Path) -> None:
    with Process(SLEEPER, name="sleeper", directory=tmp_path) as process:
        process.hear(PATIENCE)
        with pytest.raises(BenchmarkError, match=r"sleeper .* said nothing for 0 s"):
            process.hear(0.05)


def test_a_process_that_fails_is_reported_with_its_error_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no space left')"]
    with (
        Process(command, name="failing", directory=tmp_path) as process,
        pytest.raises(BenchmarkError, match=r"(?s)failing .* ended early.*no space left"),
    ):
        process.result(PATIENCE)


def test_sigkill_of_the_benchmark_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; import time; from benchmarks.processes import Process\n"
        f"process = Process({SLEEPER!r}, name='sleeper', directory=Path({str(tmp_path)!r}))\n"
        "process.hear(20); print(process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        assert alive(pid)
        benchmark.kill()
    assert gone(pid)


@pytest.mark.processes
def test_sigterm_of_the_benchmark_leaves_no_process_and_no_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--rows", "P4", "--systems", "floor", "--seconds", "30"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as benchmark:
        children = Path(f"/proc/{benchmark.pid}/task/{benchmark.pid}/children")
        deadline = time.monotonic() + PATIENCE
        while len(pids := children.read_text().split()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(pids) == 3  # broker, producer, consumer
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(PATIENCE) == 128 + signal.SIGTERM
    assert all(gone(int(pid)) for pid in pids)
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_directory_is_gone_afterwards() -> None:
    with scratch() as directory:
        (directory / "file").write_bytes(b"x")
    assert not directory.exists()


def test_the_facts_of_a_process_are_its_own() -> None:
    before = process_facts(os.getpid())
    spent = sum(number * number for number in range(500_000))
    after = process_facts(os.getpid())
    assert spent > 0
    assert used_between(before, after)[0] > 0.001
    assert after["rss"] > 1_000_000


def test_a_thread_that_ends_takes_no_time_back() -> None:
    before = {"rss": 1, "threads": {"1": (2.0, 10), "2": (5.0, 99)}}
    after = {"rss": 1, "threads": {"1": (2.5, 12), "3": (0.25, 1)}}
    assert used_between(before, after) == (0.75, 3)
