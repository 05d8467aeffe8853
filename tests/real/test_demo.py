"""The demo as a user runs it: whole, sabotaged, and interrupted."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshq
from meshq.demo._kill_plan import CONSUMERS, WINDOW

#: Long enough for a machine that is busy with other tests.
PATIENCE_SECONDS = 90.0
SOURCE = str(Path(meshq.__file__).parents[1])
#: As few rows as both kills allow.
SMALL = ("--rows", "20000")


class Demo:
    """A demo under way, with a directory of its own for everything temporary, by which its processes are known."""

    def __init__(self, scratch: Path, *arguments: str, sabotage: str = "") -> None:
        self.scratch = scratch / "temporary"
        self.scratch.mkdir()
        # Every interpreter imports this module as it starts, the demo's children too.
        (scratch / "sitecustomize.py").write_text(sabotage)
        path = os.pathsep.join([str(scratch), SOURCE])
        environment = os.environ | {"TMPDIR": str(self.scratch), "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshq", "demo", *arguments],
            env=environment,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def wait(self) -> tuple[int, str, str]:
        """Status, output and errors, once it has ended; nothing of it may be left."""
        output, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.processes() == []
        assert list(self.scratch.iterdir()) == []
        return self.process.returncode, output, errors

    def processes(self) -> list[int]:
        """Every process of it that runs, the first one included."""
        mark = b"TMPDIR=" + str(self.scratch).encode() + b"\0"
        return [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and mark in _environment(path)
        ]

    def said(self, text: str) -> None:
        """Return once it has said this."""
        assert self.process.stderr is not None
        seen = ""
        while text not in seen:
            line = self.process.stderr.readline()
            assert line, seen
            seen += line


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes() + b"\0"
    except OSError:
        return b""


def _until(condition: Any) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_both_kills_catch_enough_and_nothing_is_lost(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL, "--json", "--data-dir", "kept") as demo:
        status, output, errors = demo.wait()
    assert status == 0, errors
    result = json.loads(output)
    assert result["ok"] is True
    assert (result["rows"], result["confirmed"], result["delivered"]) == (20_000, 20_000, 20_000)
    assert (result["lost"], result["duplicates"], result["differences"]) == (0, 0, [])
    first, second = result["kills"]
    for kill in (first, second):
        # No more than the consumers' windows, and what came in place of the one batch that was acknowledged.
        assert 500 <= kill["delivered_unacknowledged"] <= (CONSUMERS + 1) * WINDOW
        assert kill["ready"] >= 5_000
    assert first["sent_unconfirmed"] > 0
    assert second["sent_unconfirmed"] == 0
    caught = first["delivered_unacknowledged"] + second["delivered_unacknowledged"]
    # What was delivered and not acknowledged comes again; an acknowledgement that was under way may have arrived.
    assert 1_000 <= result["redelivered"] <= caught
    for sides in result["carriers"].values():
        assert sides["delivered"] == sides["in_the_file"]
    assert "SIGKILL while the producer sends" in errors
    assert "\x1b" not in errors
    # What was to be kept is kept, and whole.
    command = [sys.executable, "-m", "meshq.store", "check", "kept"]
    environment = os.environ | {"PYTHONPATH": SOURCE}
    checked = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


MEMORY_ONLY = """
import meshq.demo._broker_process as role
broker = role.Broker
role.Broker = lambda name, data_dir, **settings: broker(name, data_dir=None, **settings)
"""
UNMARKED = """
from meshq.client import Delivery
Delivery.redelivered = False
"""
GIVES_BACK = """
import meshq.demo._consumer_process as role
acknowledge = role.acknowledge
async def give_back(consumer, deliveries):
    role.acknowledge = acknowledge
    await consumer.nack(*deliveries)
    return bytes([1]) * len(deliveries)
role.acknowledge = give_back
"""


@pytest.mark.parametrize(
    ("sabotage", "arguments", "named"),
    [
        pytest.param(MEMORY_ONLY, SMALL, "lost: ", id="a-broker-without-a-disk"),
        pytest.param(UNMARKED, SMALL, "duplicate: ", id="redelivery-without-a-mark"),
        pytest.param(GIVES_BACK, ("--rows", "500", "--no-kill"), "duplicate: ", id="again-after-the-confirm"),
    ],
)
def test_a_planted_fault_is_named_and_is_status_1(
    tmp_path: Path, sabotage: str, arguments: tuple[str, ...], named: str
) -> None:
    with Demo(tmp_path, *arguments, sabotage=sabotage) as demo:
        status, output, errors = demo.wait()
    assert status == 1, errors
    assert named in output.partition("This differs:")[2]


CONSUMER_FAILS = """
import meshq.demo._consumer_process as role
def describe(*_):
    raise RuntimeError("a fault was planted here")
role.describe = describe
"""


def test_a_process_that_fails_ends_the_demo_and_its_error_is_shown(tmp_path: Path) -> None:
    with Demo(tmp_path, "--rows", "500", "--no-kill", sabotage=CONSUMER_FAILS) as demo:
        status, output, errors = demo.wait()
    assert (status, output) == (1, "")
    assert "ended with status 1" in errors
    assert "a fault was planted here" in errors


@pytest.mark.parametrize("moment", ["while processes start", "after the first kill"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    with Demo(tmp_path, *SMALL) as demo:
        if moment == "while processes start":
            _until(lambda: len(demo.processes()) >= 2 or demo.process.poll() is not None)
        else:
            demo.said("SIGKILL while")
        demo.process.send_signal(signal.SIGINT)
        status, output, errors = demo.wait()
    assert (status, output) == (130, "")
    assert "Traceback" not in errors


BROKER_DOES_NOT_COME_BACK = """
import pathlib
import meshq.demo._broker_process as role
start = role.run_broker
async def run_broker(parent, data_dir, port):
    if port == "0":
        return await start(parent, data_dir, port)
    pathlib.Path("down").touch()
    await parent.hear()
role.run_broker = run_broker
"""


def test_ctrl_c_while_the_broker_is_down_leaves_nothing(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL, sabotage=BROKER_DOES_NOT_COME_BACK) as demo:
        _until(lambda: (tmp_path / "down").exists() or demo.process.poll() is not None)
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait()[0] == 130


def test_a_second_ctrl_c_does_not_wait_for_a_process_that_hangs(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL) as demo:
        demo.said("at work")
        children = [pid for pid in demo.processes() if pid != demo.process.pid]
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        demo.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert demo.process.poll() is None
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait()[0] == 130
    assert time.monotonic() - began < 8.0


def test_sigterm_ends_it_as_well_and_keeps_what_was_to_be_kept(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL, "--data-dir", "kept") as demo:
        demo.said("at work")
        demo.process.terminate()
        assert demo.wait()[0] == 143
    assert any((tmp_path / "kept").iterdir())


def test_no_process_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL, "--data-dir", "kept") as demo:
        demo.said("at work")
        demo.process.kill()
        demo.process.wait()
        _until(lambda: demo.processes() == [])


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_on_a_terminal_there_is_a_bar_and_the_result_goes_where_output_goes(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    command = [sys.executable, "-m", "meshq", "demo", "--rows", "500", "--no-kill"]
    environment = os.environ | {"TERM": "xterm", "TMPDIR": str(tmp_path), "PYTHONPATH": SOURCE}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
        try:
            drawn += os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "━".encode() in drawn
    assert b"500/500" in drawn
    assert "All 500 flights" in output
