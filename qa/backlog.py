"""Measure a backlog: fill a durable queue far beyond memory, kill its broker, start it again and drain the queue.

The broker has a process of its own, which is killed where it stands when everything is confirmed.  Then every message
must come, once and in order.  Memory is what the system says of each life: the most that it had.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio

from meshq import limits
from meshq.client import connect
from meshq.errors import MeshqError, invariant
from meshq.node import Broker
from qa.arguments import COUNT
from qa.large import memory_mib
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("backlog")
QUEUE: Final = "backlog"
BODY_BYTES: Final = 100
#: Messages that are sent, and that are received, in one call.
BATCH: Final = 10 * limits.RUN_MESSAGES_MAX
WINDOW: Final = 4 * BATCH
#: Seconds within which a broker has to be there, and once more for each million of messages.
START_S: Final = 60.0
PATIENCE_S: Final = 60.0


async def _serve(directory: str, memory_limit: int, report: Any) -> None:
    """Run a broker until it is told to stop, or killed; report its URL and how long it took to be active."""
    begun = time.perf_counter()
    broker = Broker("backlog", data_dir=directory, acceptors=["tcp://127.0.0.1:0"], memory_limit=memory_limit)
    async with broker:
        report.send((broker.urls[0], time.perf_counter() - begun))
        await trio.lowlevel.wait_readable(report.fileno())


def _life(directory: str, memory_limit: int, report: Any) -> None:
    """A life of the broker, in its process."""
    try:
        trio.run(_serve, directory, memory_limit, report)
    except (MeshqError, ExceptionGroup) as error:
        report.send((f"{error!r}", 0.0))
        raise


class Life:
    """A broker in a process of its own, seen from here."""

    def __init__(self, directory: Path, memory_limit: int, patience_s: float) -> None:
        # A process that inherits nothing: its memory is its own.
        context = multiprocessing.get_context("spawn")
        self._report, theirs = context.Pipe()
        self.process = context.Process(target=_life, args=(str(directory), memory_limit, theirs))
        self.process.start()
        theirs.close()
        invariant(self._report.poll(patience_s), f"the broker is active within {patience_s:g} s")
        self.url, self.start_s = self._report.recv()
        invariant(self.url.startswith("tcp://"), f"a broker that runs, not {self.url}")

    @property
    def peak_mib(self) -> float:
        """The most memory that it had so far."""
        return round(memory_mib(self.process.pid or 0, "VmHWM"), 1)

    def kill(self) -> None:
        """SIGKILL, and it is gone."""
        self.process.kill()
        self.process.join()
        self._report.close()

    def stop(self) -> None:
        """Let it stop in peace."""
        self._report.send("stop")
        self.process.join(PATIENCE_S)
        self.kill()


def body(number: int) -> bytes:
    """The body of a message."""
    return b"%*d" % (BODY_BYTES, number)


async def _fill(url: str, messages: int) -> int:
    """Send all of them; returns how many of these were on the disk only then."""
    async with connect(url) as client:
        await client.create_queue(QUEUE)
        for start in range(0, messages, BATCH):
            await client.send_many(QUEUE, [body(number) for number in range(start, min(start + BATCH, messages))])
        found = await client.queue(QUEUE)
    invariant(found.ready == messages, f"{messages} messages are there, not {found.ready}")
    return found.paged


async def _drain(url: str, messages: int) -> None:
    """Receive and acknowledge all of them, each once and in order."""
    expected = 0
    async with connect(url) as client:
        async with client.consumer(QUEUE, window=WINDOW) as consumer:
            while expected < messages:
                batch = await consumer.receive_many(BATCH, timeout=PATIENCE_S)
                numbers = [int(message.body) for message in batch]
                wanted = list(range(expected, expected + len(batch)))
                invariant(batch and numbers == wanted, f"message {expected} and those behind it come in order")
                expected += len(batch)
                await consumer.ack(*batch, confirm=expected == messages)
        found = await client.queue(QUEUE)
        left = found.ready + found.delivering + found.delayed
        invariant(left == 0, f"nothing is left, not {left} messages")


def _seconds_of(begun: float) -> float:
    return round(time.perf_counter() - begun, 3)


def run(messages: int, memory_mib_limit: int, directory: Path) -> dict[str, Any]:
    """Both lives."""
    limit = memory_mib_limit * limits.MIB
    patience_s = START_S * (1 + messages / 1_000_000)
    first = Life(directory, limit, patience_s)
    try:
        begun = time.perf_counter()
        paged = trio.run(_fill, first.url, messages)
        found = {"messages": messages, "memory_limit_mib": memory_mib_limit, "fill_s": _seconds_of(begun)}
        found |= {"paged_messages": paged, "first_life_peak_mib": first.peak_mib}
    finally:
        first.kill()
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    found["disk_mib"] = round(size / limits.MIB, 1)
    second = Life(directory, limit, patience_s)
    try:
        found["start_s"] = round(second.start_s, 3)
        found["start_peak_mib"] = second.peak_mib
        begun = time.perf_counter()
        trio.run(_drain, second.url, messages)
        found["drain_s"] = _seconds_of(begun)
        found["second_life_peak_mib"] = second.peak_mib
        second.stop()
    finally:
        second.kill()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, if every message came once and in order."""
    parser = argparse.ArgumentParser(prog="python -m qa.backlog", description=__doc__)
    parser.add_argument("--messages", type=COUNT, default=10_000_000, metavar="N", help="how many (%(default)s)")
    parser.add_argument(
        "--memory-mib", type=COUNT, default=256, metavar="M", help="memory_limit of the broker (%(default)s)"
    )
    parser.add_argument("--directory", metavar="DIR", help="where the broker keeps them (a temporary directory)")
    add_result_option(parser, FORMAT, "write")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="backlog-", dir=options.directory))
    try:
        found = run(options.messages, options.memory_mib, directory / "data")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in found.items():
        sys.stdout.write(f"{name:>20} {value}\n")
    file: ResultFile | None = options.result
    if file is not None:
        said = sys.argv[1:] if arguments is None else list(arguments)
        command = " ".join(["python -m qa.backlog", *said])
        result = {"command": command, **about_here(), "backlog": found}
        file.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
