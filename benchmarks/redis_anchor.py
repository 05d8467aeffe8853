"""The anchor: Redis streams with a consumer group, through redis-py.

``appendfsync always`` syncs once per turn of the server's loop, before any reply of that turn: the same promise as
a durable meshq queue.  Without an append-only file it is the anchor in memory.

Replies are not waited for one by one, as meshq's confirms are not: as many commands are under way as a producer of
meshq has messages unconfirmed, the next messages are asked for before the last ones are acknowledged, and
acknowledgements are on their way until the end, when all their replies are waited for.
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
#: Messages of a read, and reads under way: together what a consumer of meshq holds unless its window is given.
READ_COUNT = 500
READS = 2
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


class Pipelined:
    """One connection with commands under way, whose replies come in their order."""

    def __init__(self, client: redis.Redis) -> None:
        self._connection: Any = client.connection_pool.get_connection()
        self._open = 0

    def send(self, commands: list[tuple[Any, ...]]) -> None:
        """Write commands; their replies come later."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        self._open += len(commands)

    def reply(self) -> Any:
        """The next reply."""
        self._open -= 1
        return self._connection.read_response()

    def drain(self, most: int) -> None:
        """Read replies until at most so many commands are under way."""
        while self._open > most:
            self.reply()

    def drain_ready(self) -> None:
        """Read the replies that are here."""
        while self._open and self._connection.can_read(0):
            self.reply()


def produce(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    pipelined = Pipelined(connected(workload.port))
    parent.meet()
    clock = LatencyClock(workload.rate)
    started = time.monotonic()
    command = ("XADD", STREAM, "*", "b")
    body = bytes(workload.size)
    sent = 0
    while sent < workload.count:
        chunk = min(workload.frame, workload.count - sent)
        if workload.rate:
            time.sleep(clock.pause())
            body = clock.stamp(workload.size)
            pipelined.drain_ready()
        pipelined.send([(*command, body)] * chunk)
        # One at a time: the reply is waited for.  Else as many are under way as a producer has messages unconfirmed.
        pipelined.drain(0 if workload.kind == "one" else max(0, workload.window - workload.frame))
        sent += chunk
    pipelined.drain(0)
    return {"started": started, "ended": time.monotonic()}


def drain(client: redis.Redis, workload: Workload, clock: LatencyClock) -> dict[str, Any]:
    """Read and acknowledge everything; an acknowledgement has been stored when its reply is here."""
    # A read that waits for messages holds up what follows it on its connection.
    reads, acknowledgements = Pipelined(client), Pipelined(client)
    read = ("XREADGROUP", "GROUP", GROUP, "one", "COUNT", READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", STREAM, ">")
    reads.send([read] * READS)
    count = total = 0
    first: float | None = None
    while count < workload.count:
        answer: Any = reads.reply()
        if not answer:
            raise RuntimeError(f"nothing for {BLOCK_MS} ms after {count} of {workload.count} messages")
        reads.send([read])
        if first is None:
            first = time.monotonic()
        for _, entries in answer:
            bodies = [fields[1] for _, fields in entries]
            clock.arrived(bodies)
            total += sum(map(len, bodies))
            count += len(entries)
            acknowledgements.send([("XACK", STREAM, GROUP, *[number for number, _ in entries])])
            acknowledgements.drain_ready()
    acknowledgements.drain(0)
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
