"""Calls of connectors on a client for threads: ranges of a queue, whole runs, and work inside the loop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from meshq import client as trio_client
from meshq.blocking._client import Client
from meshq.blocking._consumer import Consumer
from meshq.client import DeliveredRun, SequenceHole

T = TypeVar("T")


class RunPart(NamedTuple):
    """The messages of a run from ``start`` up to, and without, ``end``."""

    run: DeliveredRun
    start: int
    end: int


def range_reader(client: Client, queue: str, lo: int, hi: int, *, cursor: str = "", fence: int = 0) -> Consumer:
    """Create a reader of a range of a queue, to be used as ``with``; as ``meshq.client.range_reader``.

    Raises:
        SettingsError: these are no sequences.
    """
    inner = client._loop.run_sync_if_open(
        lambda: trio_client.range_reader(client._inner, queue, lo, hi, cursor=cursor, fence=fence)
    )
    return Consumer(client, inner)


def holes_between(client: Client, queue: str, lo: int, hi: int, pages: float = math.inf) -> list[SequenceHole]:
    """Return the holes of a range of a queue; as ``meshq.client.holes_between``.

    Raises:
        MeshqError: the broker has refused, or there is no answer.
    """
    return client._call(trio_client.holes_between, client._inner, queue, lo, hi, pages)


def receive_runs(reader: Consumer, timeout: float | None) -> list[RunPart]:
    """Receive all messages that are here, in runs; none at the timeout, or at the end: see ``at_end``.

    Raises:
        MeshqError: as ``reader.receive``.
    """
    parts: list[RunPart] = []
    with reader._arrived:
        if (reader._busy or not reader._ready()) and not reader._wait(timeout):
            return parts
        while reader._ready():
            run, start = reader._run, reader._position
            assert run is not None
            reader._hand_over(run, run.rows)
            parts.append(RunPart(run, start, run.rows))
    return parts


def at_end(reader: Consumer) -> bool:
    """Whether a reader of a range has shown all of it."""
    with reader._arrived:
        return reader._tap.ended and not reader._ready()


def call_in_loop(client: Client, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Call a coroutine function in the loop of a client, and wait for its result."""
    return client._call(function, *arguments)
