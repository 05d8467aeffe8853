"""Measure one very large message: send it through a broker of its own process, and receive it.

The body is made while it is sent, and compared while it is received, so nobody ever has all of it.  Memory is what
the system says of each process: the most that it had, beyond what it had after a small large message.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import trio

from meshq import limits
from meshq.client import Client, Consumer, Delivery, connect
from meshq.errors import invariant
from qa.arguments import COUNT
from qa.broker_process import BrokerProcess
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("large message")
#: What memory may grow by, however large the message: in MiB.
GROWTH_MIB_MAX: Final = 64
#: What is sent before anything is measured: it takes every way that the large one takes.
WARM_MIB: Final = 4
PATIENCE_S: Final = 60.0
FILLER: Final = bytes(range(256)) * (limits.MIB // 256 - 1) + bytes(248)


def memory_mib(process: int | str, what: str) -> float:
    """Return a figure of the system about a process: ``VmRSS`` now, or ``VmHWM``, the most so far."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(what)


def bytes_in(directory: Path) -> int:
    """Return the bytes of all files of a directory, of which the broker may remove some meanwhile."""
    total = 0
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


class Body:
    """A body of so many MiB, made anew each time, and its checksum."""

    def __init__(self, mib: int) -> None:
        self.mib = mib
        self.crc = 0

    def __aiter__(self) -> BodyPieces:
        self.crc = 0
        return BodyPieces(self)


class BodyPieces:
    """The pieces of a body, of a MiB each."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._number = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece.  Checkpoint: never.  Raises: StopAsyncIteration: that was all."""
        if self._number == self._body.mib:
            raise StopAsyncIteration
        piece = self._number.to_bytes(8, "big") + FILLER
        self._number += 1
        self._body.crc = zlib.crc32(piece, self._body.crc)
        return piece


async def _received(consumer: Consumer) -> Delivery:
    message = await consumer.receive(timeout=PATIENCE_S)
    invariant(message is not None, "the message is there")
    assert message is not None
    return message


async def _through(client: Client, body: Body, large: Path) -> dict[str, float]:
    """Send and receive one body; return the seconds, and the bytes on the disk in between."""
    begun = time.perf_counter()
    await client.send("q", body)
    sent = time.perf_counter()
    on_disk = bytes_in(large)
    async with client.consumer("q") as consumer:
        message = await _received(consumer)
        crc = size = 0
        async with message.open() as stream:
            async for chunk in stream:
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
        received = time.perf_counter()
        invariant((crc, size) == (body.crc, body.mib * limits.MIB), "what comes is what was sent")
        await message.ack(confirm=True)
    with trio.fail_after(PATIENCE_S):
        while bytes_in(large):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.01)
    return {"send_s": sent - begun, "receive_s": received - sent, "disk_mib": on_disk / limits.MIB}


async def measure(url: str, process: int, directory: Path, mib: int) -> dict[str, Any]:
    """A body through a broker that runs.

    Checkpoint: always.  Cancellation: the message may be left.
    Raises: MeshqError, InvariantError: it did not come through as it was.
    """
    large = directory / "large"
    async with connect(url) as client:
        await _through(client, Body(WARM_MIB), large)
        before = {who: memory_mib(of, "VmRSS") for who, of in (("client", "self"), ("broker", process))}
        found = await _through(client, Body(mib), large)
        after = {who: memory_mib(of, "VmHWM") for who, of in (("client", "self"), ("broker", process))}
    return {
        "mib": mib,
        **{name: round(value, 3) for name, value in found.items()},
        **{f"{who}_before_mib": round(before[who], 1) for who in before},
        **{f"{who}_growth_mib": round(max(0.0, after[who] - before[who]), 1) for who in before},
    }


def run(mib: int, directory: Path) -> dict[str, Any]:
    """A body through a broker of its own."""
    broker = BrokerProcess(str(directory))
    try:
        url = broker.next_report()
        process = broker.process.pid
        invariant(process is not None and str(url).startswith("tcp://"), f"a broker that runs, not {url!r}")
        assert process is not None
        return trio.run(measure, url, process, directory, mib)
    finally:
        broker.stop()
        broker.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if memory grew by more than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m qa.large", description=__doc__)
    parser.add_argument("--mib", type=COUNT, default=10 * 1024, metavar="N", help="size of the message (%(default)s)")
    parser.add_argument("--directory", metavar="DIR", help="where the broker keeps it (a temporary directory)")
    add_result_option(parser, FORMAT, "write")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="large-", dir=options.directory))
    try:
        found = run(options.mib, directory / "data")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    found["growth_mib_max"] = GROWTH_MIB_MAX
    for name, value in found.items():
        sys.stdout.write(f"{name:>20} {value}\n")
    file: ResultFile | None = options.result
    if file is not None:
        said = sys.argv[1:] if arguments is None else list(arguments)
        command = " ".join(["python -m qa.large", *said])
        result = {"command": command, **about_here(), "large": found}
        file.write(result)
    return int(max(found["client_growth_mib"], found["broker_growth_mib"]) > GROWTH_MIB_MAX)


if __name__ == "__main__":
    sys.exit(main())
