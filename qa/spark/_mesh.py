"""Nodes of a cluster that are killed and started again: each in a process of its own, over a store of its own."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import trio

from meshq.cluster import ClusterConnection
from meshq.node import Broker
from meshq.settings import JournalSettings

CLUSTER: Final = "mesh"
SEGMENT_BYTES: Final = 64 * 1024
#: Seconds until a node serves.
_PATIENCE_S: Final = 60.0


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback device, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def serve(directory: str, number: int, ports: tuple[int, ...], report: Any) -> None:
    """Run a node until it is told to stop, or killed; ``report`` gets its URL.

    Checkpoint: always.  Cancellation: ends the node.
    """
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    own = urls.pop(number)
    mesh = ClusterConnection(
        CLUSTER,
        connector="here",
        static_connectors=urls,
        user="mesh",
        password="mesh",
        retry_interval=0.05,
        max_retry_interval=0.25,
    )
    broker = Broker(
        f"node-{number + 1}",
        data_dir=directory,
        journal=JournalSettings(segment_bytes=SEGMENT_BYTES),
        acceptors=[own],
        connectors={"here": own},
        services=[mesh] if urls else [],
    )
    async with broker:
        report.send(own)
        await trio.lowlevel.wait_readable(report.fileno())


def life(directory: str, number: int, ports: tuple[int, ...], report: Any) -> None:
    """A life in this process."""
    trio.run(serve, directory, number, ports, report)


class Mesh:
    """The nodes of a cluster."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._ports = tuple(free_ports(count))
        self._processes: dict[int, tuple[Any, Any]] = {}
        for number in range(count):
            self._begin(number)
        for number in range(count):
            self._served(number)

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self._ports)

    @property
    def url(self) -> str:
        """The URLs of all nodes, as one."""
        urls = [self.url_of(number) for number in range(self.count)]
        return urls[0] if len(urls) == 1 else f"({','.join(urls)})"

    def url_of(self, number: int) -> str:
        """The URL of a node."""
        return f"tcp://127.0.0.1:{self._ports[number]}"

    def _begin(self, number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        ours, theirs = context.Pipe()
        arguments = (str(self._folder / f"node-{number}"), number, self._ports, theirs)
        process = context.Process(target=life, args=arguments)
        process.start()
        theirs.close()
        self._processes[number] = process, ours

    def _served(self, number: int) -> None:
        _, report = self._processes[number]
        try:
            if report.poll(_PATIENCE_S):
                report.recv()
                return
        except (EOFError, ConnectionResetError):
            pass
        raise RuntimeError(f"node {number} has not started")

    def kill(self, number: int) -> None:
        """Kill a node."""
        process, report = self._processes.pop(number)
        process.kill()
        process.join()
        report.close()

    def start_again(self, number: int) -> None:
        """Start a node again over its store."""
        self._begin(number)
        self._served(number)

    def close(self) -> None:
        """End all nodes."""
        for number in list(self._processes):
            self.kill(number)
