"""A broker in a process of its own, with a disk that fails at one call.

Forked from a server that has imported everything, so that a life costs milliseconds.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import attrs
import trio

from meshq.env import FaultInjectingDisk, real_env
from meshq.errors import MeshqError
from meshq.node import Broker
from meshq.settings import JournalSettings

SEGMENT_BYTES = 64 * 1024


async def serve(
    directory: str,
    port: int,
    at: dict[str, int],
    action: str,
    report: Any,
    memory_limit: int | None = None,
    failpoint: tuple[str, ...] = (),
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Run the broker until it is told to stop, fails or is killed; ``report`` gets its URL, then its disk calls.

    Checkpoint: always.  Cancellation: ends the broker.
    """
    env = real_env()
    disk = FaultInjectingDisk(env.disk, at=at, action=action)  # type: ignore[arg-type]
    broker = Broker(
        "real",
        data_dir=directory,
        journal=JournalSettings(segment_bytes=segment_bytes),
        acceptors=[f"tcp://127.0.0.1:{port}"],
        memory_limit=memory_limit,
        env=attrs.evolve(env, disk=disk, failpoint=frozenset(failpoint).__contains__),
    )
    async with broker:
        report.send(broker.urls[0])
        await trio.lowlevel.wait_readable(report.fileno())
    report.send(dict(disk.calls))


def life(
    directory: str,
    port: int,
    at: dict[str, int],
    action: str,
    report: Any,
    memory_limit: int | None = None,
    failpoint: tuple[str, ...] = (),
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """A life in this process."""
    try:
        trio.run(serve, directory, port, at, action, report, memory_limit, failpoint, segment_bytes)
    except MeshqError as error:
        report.send(f"{type(error).__name__}: {error}")


class BrokerProcess:
    """A broker's process, seen from the test.

    ``at`` and ``action`` are those of ``meshq.env.FaultInjectingDisk``.  The failpoints named in ``failpoint`` always
    strike.
    Its first report is its URL, or how it failed.
    """

    def __init__(
        self,
        directory: str,
        port: int = 0,
        at: dict[str, int] | None = None,
        action: str = "kill",
        *,
        memory_limit: int | None = None,
        failpoint: tuple[str, ...] = (),
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.report, theirs = context.Pipe()
        arguments = (directory, port, at or {}, action, theirs, memory_limit, failpoint, segment_bytes)
        self.process = context.Process(target=life, args=arguments)
        self.process.start()
        theirs.close()

    def next_report(self) -> Any:
        """Return the next report of the process; None if it died without a word."""
        try:
            return self.report.recv() if self.report.poll(20) else None
        except (EOFError, ConnectionResetError):
            return None

    def stop(self) -> Any:
        """Let the process stop in peace; return its last report, or None if it is dead already."""
        try:
            self.report.send("stop")
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self.next_report()

    def close(self) -> int | None:
        """Make sure that it is gone; its exit code."""
        self.process.join(timeout=10 if self.process.exitcode is None and not self.process.is_alive() else 0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.report.close()
        return self.process.exitcode
