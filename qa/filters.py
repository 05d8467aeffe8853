"""Measure the cost of a message in a queue of thousands of consumers, each with an equality filter of its own.

Broker and clients are processes of their own; what counts is the CPU time of the broker's.  A broker that put each
message to each filter would take ten times as long for ten times the consumers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio

from meshq import limits
from meshq.client import Client, Consumer, connect
from meshq.errors import invariant
from meshq.message import Message
from qa.arguments import COUNT
from qa.broker_process import BrokerProcess
from qa.large import memory_mib
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("filters")
CONSUMERS: Final = 5_000
MESSAGES: Final = 200_000
#: Of the consumers, as many as are compared with all of them.
SHARE: Final = 10
#: What a message may cost with all of them, over what it costs with that share.
RATIO_MAX: Final = 2.0
#: A session has room for so many.
CONSUMERS_PER_CLIENT: Final = 1_000
BATCH: Final = 250
WINDOW: Final = 100
BODY: Final = bytes(100)
PATIENCE_S: Final = 300.0
_QUEUE: Final = "orders"


def cpu_s(process: int) -> float:
    """The CPU time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Crowd:
    """Consumers that count their messages, right and wrong ones."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.misrouted = 0
        self.all_came = trio.Event()

    async def consume(self, consumer: Consumer, customer: str) -> None:
        """Take the messages for one customer, to the end.

        Checkpoint: always.  Cancellation: it stops.
        Raises: MeshqError: the broker is gone.
        """
        while True:
            batch = await consumer.receive_many(WINDOW)
            self.misrouted += sum(message.properties["customer"] != customer for message in batch)
            self.left -= len(batch)
            if self.left <= 0:
                self.all_came.set()


async def measure(url: str, process: int, consumers: int, messages: int) -> dict[str, Any]:
    """So many consumers at a broker that runs, and so many messages for all of them in turn.

    Checkpoint: always.  Cancellation: messages may be left.
    Raises: MeshqError, InvariantError: a message did not come to the one who asked for it.
    """
    crowd = Crowd(messages)
    async with trio.open_nursery() as nursery:
        begun = time.perf_counter()
        for first in range(0, consumers, CONSUMERS_PER_CLIENT):
            client = await _entered(nursery, connect(url))
            if not first:
                await client.create_queue(_QUEUE)
            for number in range(first, min(consumers, first + CONSUMERS_PER_CLIENT)):
                customer = f"customer {number}"
                consumer = client.consumer(_QUEUE, filter=f"customer = '{customer}'", window=WINDOW, ack="auto")
                nursery.start_soon(crowd.consume, await _entered(nursery, consumer), customer)
        opened, cpu = time.perf_counter(), cpu_s(process)
        async with connect(url) as sender:
            for first in range(0, messages, BATCH):
                numbers = range(first, min(messages, first + BATCH))
                named = [Message(BODY, properties={"customer": f"customer {at % consumers}"}) for at in numbers]
                await sender.send_many(_QUEUE, named)
            with trio.fail_after(PATIENCE_S):
                await crowd.all_came.wait()
        ended, taken = time.perf_counter(), cpu_s(process) - cpu
        nursery.cancel_scope.cancel()
    invariant(not crowd.left and not crowd.misrouted, f"{crowd.left} are missing, {crowd.misrouted} came to another")
    return {
        "consumers": consumers,
        "messages": messages,
        "open_s": round(opened - begun, 3),
        "seconds": round(ended - opened, 3),
        "broker_cpu_us": round(taken / messages * 1e6, 2),
        "broker_peak_mib": round(memory_mib(process, "VmHWM"), 1),
    }


async def _entered(nursery: trio.Nursery, context: Any) -> Any:
    """Open a client or a consumer for as long as the nursery lasts."""

    async def hold(task_status: trio.TaskStatus[Client | Consumer]) -> None:
        async with context as opened:
            task_status.started(opened)
            await trio.sleep_forever()

    return await nursery.start(hold)


def run(consumers: int, messages: int, directory: Path) -> dict[str, Any]:
    """So many consumers at a broker of their own."""
    broker = BrokerProcess(str(directory))
    try:
        url = broker.next_report()
        process = broker.process.pid
        invariant(process is not None and str(url).startswith("tcp://"), f"a broker that runs, not {url!r}")
        assert process is not None
        found = trio.run(measure, url, process, consumers, messages)
        broker.stop()
        on_disk = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        found["disk_mib"] = round(on_disk / limits.MIB, 1)
        return found
    finally:
        broker.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if a message costs more with more consumers than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m qa.filters", description=__doc__)
    parser.add_argument("--consumers", type=COUNT, default=CONSUMERS, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--messages", type=COUNT, default=MESSAGES, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--directory", metavar="DIR", help="where the broker keeps them (a temporary directory)")
    add_result_option(parser, FORMAT, "write")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="filters-", dir=options.directory))
    try:
        few = run(max(1, options.consumers // SHARE), options.messages, directory / "few")
        many = run(options.consumers, options.messages, directory / "many")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    ratio = round(many["broker_cpu_us"] / few["broker_cpu_us"], 3)
    for name in few:
        sys.stdout.write(f"{name:>20} {few[name]:>12} {many[name]:>12}\n")
    sys.stdout.write(f"{'ratio':>20} {ratio:>25}\n")
    file: ResultFile | None = options.result
    if file is not None:
        said = sys.argv[1:] if arguments is None else list(arguments)
        command = " ".join(["python -m qa.filters", *said])
        found = {"few": few, "many": many, "ratio": ratio, "ratio_max": RATIO_MAX}
        result = {"command": command, **about_here(), "filters": found}
        file.write(result)
    return int(ratio > RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main())
