"""Serving: a broker, a witness or both as a process of its own, from the start to the signal that ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

import trio

from meshq.errors import MeshqError
from meshq.ha import QuorumNode
from meshq.logs import logger
from meshq.node import Broker

_log = logger("cli")
#: A process that a signal has ended exits with this and the signal's number.
SIGNALLED = 128
Node = Broker | QuorumNode


def log_ready(node: Node) -> None:
    """Log that a node serves, and where."""
    urls = ", ".join(node.urls) or "no address"
    _log.info("serving %s at %s", node.name, urls, extra={"event": "serving"})


async def serve(nodes: Sequence[Node], ready: Callable[[Node], None] = log_ready) -> MeshqError | None:
    """Run nodes until a signal comes; returns why one has failed, None if they were asked to stop.

    They start in their order, and stop in the opposite one.
    """
    failure: MeshqError | None = None
    starting, stopping = trio.CancelScope(), trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, signals, nodes, starting, stopping)
            try:
                with starting:
                    async with AsyncExitStack() as started:
                        for node in nodes:
                            await started.enter_async_context(node)
                            ready(node)
                        await stopping.wait()
            except MeshqError as error:
                failure = error
            nursery.cancel_scope.cancel()
    return failure


async def _watch(
    signals: AsyncIterator[int], nodes: Sequence[Node], starting: trio.CancelScope, stopping: trio.Event
) -> None:
    async for number in signals:
        if stopping.is_set():
            # Whatever holds up the stop may hold up anything else; what was confirmed is on the disk.
            os._exit(SIGNALLED + number)
        names = " and ".join(node.name for node in nodes)
        _log.info("stopping %s at %s", names, signal.Signals(number).name, extra={"event": "stopping"})
        stopping.set()
        if any(node.state in ("new", "starting") for node in nodes):
            starting.cancel()
