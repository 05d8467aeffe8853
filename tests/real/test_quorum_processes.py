"""``meshq quorum`` as processes: witnesses that serve, are killed and come back, and what is shown of them."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from meshq import MeshQuorum
from meshq.__main__ import main
from meshq.abc import QuorumRecord
from tests.real.test_run import MESHQ, Served

pytestmark = pytest.mark.processes
ID = b"\x11" * 16


class Witness:
    """A process of ``meshq quorum run`` on any free port."""

    def __init__(self, name: str, place: Path, clean: ExitStack) -> None:
        command = [*MESHQ, "quorum", "run", name, "--data-dir", str(place / name), "--url", "tcp://127.0.0.1:0"]
        options = ["--password-file", str(place / "password")]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        clean.callback(self._end)
        self._name = name

    def ready(self) -> str:
        """Its URL, when it serves."""
        assert self.process.stdout is not None
        begin, _, url = self.process.stdout.readline().rstrip().rpartition(" ")
        assert begin == f"quorum {self._name} ready at"
        return url

    def ended(self, number: signal.Signals) -> int:
        """Send a signal; how it has ended."""
        self.process.send_signal(number)
        return self.process.wait(10)

    def _end(self) -> None:
        self.process.kill()
        self.process.communicate()


async def keep(urls: list[str], record: QuorumRecord) -> None:
    """Store a record with witnesses, and give the lock back."""
    async with MeshQuorum(urls, password="for tests only").session(ID, b"\x22" * 16) as session:
        assert await session.acquire()
        assert await session.compare_and_set(QuorumRecord(), record)


def plain(line: str) -> str:
    """A line without the journals of witnesses, by which each is named."""
    return re.sub(r"(w\d)/[0-9a-f]{8}", r"\1", line)


def test_witnesses_keep_their_promises_over_a_kill_and_show_their_records(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "password").write_text("for tests only\n")
    password = ["--password-file", str(tmp_path / "password")]
    record = QuorumRecord(epoch=2, sequence=1, claimed=1, in_sync=("a", "b"), holder="a")
    with ExitStack() as clean:
        witnesses = [Witness(name, tmp_path, clean) for name in ("w0", "w1", "w2")]
        urls = [witness.ready() for witness in witnesses]
        trio.run(keep, urls, record)
        assert witnesses[0].ended(signal.SIGKILL) == -signal.SIGKILL
        again = Witness("w0", tmp_path, clean)
        # While the witness starts anew, somewhere else.
        assert main(["quorum", "show", *urls, *password]) == 1
        text, errors = capfd.readouterr()
        lines = text.splitlines()
        assert errors.startswith(f"{urls[0]}: ") and "Error: 1 of 3 witnesses did not answer" in errors
        assert lines[0] == f"{'11' * 16}: epoch 2, sequence 1, claimed 1, in sync a, b, holder a"
        assert plain(lines[1]) == "  2 of 3 witnesses (w0, w1, w2)"
        of_witness = "record of ballot 1, number 2; ballot 1 promised, given back"
        assert [*map(plain, lines[2:])] == [f"  w1: {of_witness}", f"  w2: {of_witness}"]

        command = [*MESHQ, "quorum", "show", again.ready(), *urls[1:], *password]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
        first, second, *rest = result.stdout.splitlines()
        assert (result.returncode, result.stderr, first) == (0, "", lines[0])
        assert plain(second) == "  3 of 3 witnesses (w0, w1, w2)"
        assert [*map(plain, rest)] == [f"  {name}: {of_witness}" for name in ("w0", "w1", "w2")]

        assert again.ended(signal.SIGTERM) == 0
        assert witnesses[1].ended(signal.SIGINT) == 0


def test_a_file_starts_a_witness_and_a_broker_in_one_process(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    lines = [f'data_dir = "{tmp_path}/PLACE"', 'acceptors = ["tcp://127.0.0.1:0"]']
    broker, witness = (["name = 'PLACE'", *lines] for _ in range(2))
    text = "\n".join(broker).replace("PLACE", "hq")
    text += "\n[quorum]\npassword = 'for tests only'\n" + "\n".join(witness).replace("PLACE", "w0")
    file.write_text(text)
    running = Served([*MESHQ, "run", str(file)])
    try:
        record = QuorumRecord(epoch=1, holder="a")
        other, url = [running.line("serving hq"), running.url]
        assert "tcp://127.0.0.1:" in other and url.startswith("tcp://")
        with ExitStack() as clean:
            (tmp_path / "password").write_text("for tests only\n")
            urls = [url, *(Witness(name, tmp_path, clean).ready() for name in ("w1", "w2"))]
            trio.run(keep, urls, record)
        running.process.send_signal(signal.SIGTERM)
        assert running.rest()[0] == 0
    finally:
        running.process.kill()
        running.process.communicate()
