"""``meshq run`` as a process: it serves, stops at a signal, and comes back after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshq.blocking import connect

MESHQ = [sys.executable, "-W", "error", "-m", "meshq"]
#: The same command with a node that never ends, as on a disk that has stopped answering.
STUCK = """\
import sys, trio
from meshq.__main__ import main
from meshq.node._node import Node

async def stop(self):
    await trio.sleep_forever()

Node.stop = stop
sys.exit(main(["run", sys.argv[1]]))
"""


class Served:
    """A process that serves, and what it has said."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = self.line("serving").rpartition(" ")[2]

    def line(self, word: str) -> str:
        """The next line in which a word stands."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return line.rstrip()
        raise AssertionError(f"it has ended without {word!r}: {self.process.wait(10)}")

    def rest(self) -> tuple[int, str]:
        """How it has ended, and what it has still said."""
        assert self.process.stderr is not None
        # Not `communicate`: it does not know of what was read ahead of the last line.
        text = self.process.stderr.read()
        return self.process.wait(30), text


@contextmanager
def served(tmp_path: Path, command: Sequence[str] = (*MESHQ, "run")) -> Iterator[Served]:
    """A broker on any free port."""
    file = tmp_path / "broker.toml"
    file.write_text(f'name = "hq"\ndata_dir = "{tmp_path / "hq"}"\nacceptors = ["tcp://127.0.0.1:0"]\n')
    found = Served([*command, str(file)])
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_finds_everything_again(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path) as broker:
        with connect(broker.url) as client:
            client.send("q", b"kept")
        broker.process.send_signal(number)
        assert f"at {number.name}" in broker.line("stopping")
        code, text = broker.rest()
        assert code == 0
        assert [line.partition(": ")[2] for line in text.splitlines()] == ["hq is stopping", "hq is stopped"]
    with served(tmp_path) as broker, connect(broker.url) as client, client.consumer("q") as consumer:
        delivery = consumer.receive(timeout=10)
        assert delivery is not None
        assert delivery.body == b"kept"


@pytest.mark.processes
def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    with served(tmp_path) as broker:
        with connect(broker.url) as client:
            client.send("q", b"kept")
            broker.process.kill()
        assert broker.rest()[0] == -signal.SIGKILL
    with served(tmp_path) as broker, connect(broker.url) as client:
        assert client.queue("q").ready == 1


@pytest.mark.processes
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with served(tmp_path, (sys.executable, "-c", STUCK)) as broker:
        with connect(broker.url) as client:
            client.send("q", b"kept")
        broker.process.send_signal(signal.SIGTERM)
        broker.line("stopping")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.rest()[0] == 128 + signal.SIGTERM
    with served(tmp_path) as broker, connect(broker.url) as client:
        assert client.queue("q").ready == 1


@pytest.mark.processes
def test_a_broker_that_can_not_start_says_why(tmp_path: Path) -> None:
    with served(tmp_path):
        result = subprocess.run(
            [*MESHQ, "run", str(tmp_path / "broker.toml")], capture_output=True, text=True, timeout=30
        )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ") and str(tmp_path / "hq") in last


@pytest.mark.processes
def test_a_file_is_checked_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'name = "hq"\ndata_dir = "{tmp_path / "hq"}"\nqueues = [5]')
    result = subprocess.run([*MESHQ, "check-config", str(file)], capture_output=True, text=True, timeout=30)
    assert result.returncode == 1
    assert result.stderr == f"{file}:3: queues[0]: 5 is not allowed; allowed: a text\n"
    assert not (tmp_path / "hq").exists()
