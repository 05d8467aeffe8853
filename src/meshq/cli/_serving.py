"""Serving: a broker as a process of its own, from its start to the signal that ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import trio

from meshq.errors import MeshqError
from meshq.logs import logger
from meshq.node import Broker

_log = logger("cli")
#: A process that a signal has ended exits with this and the signal's number.
SIGNALLED = 128


async def serve(broker: Broker) -> MeshqError | None:
    """Run a broker until a signal comes; returns why it has failed, None if it was asked to stop."""
    failure: MeshqError | None = None
    starting, stopping = trio.CancelScope(), trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, signals, broker, starting, stopping)
            try:
                with starting:
                    async with broker:
                        urls = ", ".join(broker.urls) or "no address"
                        _log.info("serving %s at %s", broker.name, urls, extra={"event": "serving"})
                        await stopping.wait()
            except MeshqError as error:
                failure = error
            nursery.cancel_scope.cancel()
    return failure


async def _watch(signals: AsyncIterator[int], broker: Broker, starting: trio.CancelScope, stopping: trio.Event) -> None:
    async for number in signals:
        if stopping.is_set():
            # Whatever holds up the stop may hold up anything else; what was confirmed is on the disk.
            os._exit(SIGNALLED + number)
        _log.info("stopping %s at %s", broker.name, signal.Signals(number).name, extra={"event": "stopping"})
        stopping.set()
        if broker.state in ("new", "starting"):
            starting.cancel()
