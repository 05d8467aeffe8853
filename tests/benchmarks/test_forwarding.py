"""A message that is forwarded is counted once, at both ends."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from benchmarks.ours import consume
from benchmarks.runner import measure
from benchmarks.workload import NUMBER, Workload

FORWARDED = Workload(kind="forward", count=2_000)


@pytest.mark.processes
@pytest.mark.real
def test_every_message_crosses_the_link_once_and_both_brokers_sync() -> None:
    figures = measure("ours", FORWARDED)
    assert figures["messages"] == 2_000
    assert figures["rate"] > 0
    # One of them stores it for the other, which stores it for its consumer.
    assert figures["syncs_per_s"] * figures["seconds"] >= 2
    assert figures["broker_cpu_us"] > 0
    assert figures["second_broker_cpu_us"] > 0


@pytest.mark.processes
@pytest.mark.real
def test_a_system_without_a_cluster_has_one_broker_for_both_clients() -> None:
    figures = measure("floor", attrs.evolve(FORWARDED, window=200))
    assert figures["messages"] == 2_000
    assert "second_broker_cpu_us" not in figures


@attrs.define
class Arrived:
    body: bytes


class Queue:
    """A client and its consumer, who get these messages."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies

    @asynccontextmanager
    async def consumer(self, name: str) -> Any:
        yield self

    async def receive_many(self, most: int, timeout: float) -> list[Arrived]:  # noqa: ASYNC109 (as the real one)
        await trio.lowlevel.checkpoint()
        bodies, self._bodies = self._bodies, []
        return [Arrived(body) for body in bodies]

    async def ack(self, *arrived: Arrived) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_message_that_comes_twice_in_place_of_another_fails_the_run() -> None:
    workload = attrs.evolve(FORWARDED, count=3, size=8)
    assert (await consume(Queue([NUMBER.pack(number) for number in (0, 2, 1)]), workload))["ended"]
    with pytest.raises(RuntimeError, match="1 of 3 messages came more than once"):
        await consume(Queue([NUMBER.pack(number) for number in (0, 1, 1)]), workload)
