"""The anchor: Redis streams with a consumer group, through redis-py, as a user of it would write them.

``appendfsync always`` syncs once per turn of the server's loop, before any reply of that turn: the same promise as
a durable meshq queue.  Without an append-only file it is the anchor in memory.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.processes import START_SECONDS, BenchmarkError, Process
from benchmarks.workload import LatencyClock, Workload, received

STREAM, GROUP = "orders", "workers"
READ_COUNT = 1_000
BLOCK_MS = 5_000


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server(directory: Path, *, durable: bool, port: int) -> Process:
    """A server of our own: own port, own directory, nothing rewritten or saved while it is measured."""
    command = [
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(directory),
        "--save",
        "",
    ]
    command += ["--daemonize", "no", "--logfile", "redis.log", "--auto-aof-rewrite-percentage", "0"]
    if durable:
        command += ["--appendonly", "yes", "--appendfsync", "always"]
    return Process(command, name="redis-server", directory=directory)


def connected(port: int, timeout: float = START_SECONDS) -> redis.Redis:
    """A connection to a server that has finished loading."""
    client = redis.Redis(port=port, protocol=2)
    deadline = time.monotonic() + timeout
    while True:
        try:
            client.ping()
            return client
        except (redis.ConnectionError, redis.BusyLoadingError):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"redis-server on port {port} did not answer for {timeout:.0f} s") from None
            time.sleep(0.002)


@contextmanager
def running(directory: Path, *, durable: bool) -> Iterator[tuple[Process, int]]:
    """A server with an empty stream and its group; SIGTERM at the end, SIGKILL if that does not help."""
    port = free_port()
    with server(directory, durable=durable, port=port) as process:
        with connected(port) as client:
            client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        yield process, port
        process.terminate()


def syncs(process: Process, port: int) -> int:
    """Syncs so far: with ``always`` each write of the append-only file is followed by one.

    Redis does not count them.  The kernel counts the process's write calls, Redis those that went to clients; the
    difference went to the file.
    """
    io = Path(f"/proc/{process.pid}/io").read_text().split()
    writes = int(io[io.index("syscw:") + 1])
    with connected(port) as client:
        statistics: Any = client.info("stats")
    to_clients = int(statistics["total_writes_processed"])
    return writes - to_clients


def produce(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    client = connected(workload.port)
    parent.meet()
    clock = LatencyClock(workload.rate)
    started = time.monotonic()
    body = bytes(workload.size)
    sent = 0
    while sent < workload.count:
        if workload.rate:
            time.sleep(clock.pause())
            body = clock.stamp(workload.size)
        if workload.frame == 1:
            client.xadd(STREAM, {"b": body})
            sent += 1
        else:
            chunk = min(workload.frame, workload.count - sent)
            pipeline = client.pipeline(transaction=False)
            for _ in range(chunk):
                pipeline.xadd(STREAM, {"b": body})
            pipeline.execute()
            sent += chunk
    return {"started": started, "ended": time.monotonic()}


def drain(client: redis.Redis, workload: Workload, clock: LatencyClock) -> dict[str, Any]:
    """Read and acknowledge everything; an acknowledgement has been stored when its reply is here."""
    count = total = 0
    first: float | None = None
    while count < workload.count:
        answer: Any = client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=READ_COUNT, block=BLOCK_MS)
        if not answer:
            raise RuntimeError(f"nothing for {BLOCK_MS} ms after {count} of {workload.count} messages")
        if first is None:
            first = time.monotonic()
        for _, entries in answer:
            clock.arrived(fields[b"b"] for _, fields in entries)
            total += sum(len(fields[b"b"]) for _, fields in entries)
            count += len(entries)
            client.xack(STREAM, GROUP, *[number for number, _ in entries])
    return received(workload, count, total, clock) | {"first": first}


def consume(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    client = connected(workload.port)
    parent.meet()
    return drain(client, workload, LatencyClock(workload.rate))


def consume_late(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Connect only when told where to."""
    facts = parent.meet()
    return drain(connected(int(facts["port"])), workload, LatencyClock(0.0))


async def run_producer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    return await trio.to_thread.run_sync(produce, workload, parent)


async def run_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    return await trio.to_thread.run_sync(consume, workload, parent)


async def run_late_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    return await trio.to_thread.run_sync(consume_late, workload, parent)


ROLES = {"producer": run_producer, "consumer": run_consumer, "late-consumer": run_late_consumer}

if __name__ == "__main__":
    serve(ROLES)
