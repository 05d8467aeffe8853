"""The memory network keeps the promises of a network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from meshq.testing import (
    NETWORK_CHECKS,
    STREAM_CHECKS,
    MemoryNetwork,
    NetworkCheck,
    NetworkSides,
    check_network,
    check_stream,
)


@asynccontextmanager
async def memory_sides(seed: int = 0) -> AsyncIterator[NetworkSides]:
    fabric = MemoryNetwork(random.Random(seed))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.run)
        yield NetworkSides(fabric.host("client"), fabric.host("server"), "server")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("check", (*NETWORK_CHECKS, *STREAM_CHECKS))
async def test_the_memory_network_conforms(check: NetworkCheck) -> None:
    async with memory_sides() as sides:
        await check(sides)


async def test_the_suites_run_as_one_call_each() -> None:
    entered = 0

    @asynccontextmanager
    async def counted() -> AsyncIterator[NetworkSides]:
        nonlocal entered
        entered += 1
        async with memory_sides() as sides:
            yield sides

    await check_network(counted)
    assert entered == len(NETWORK_CHECKS) > 5
    await check_stream(counted)
    assert entered == len(NETWORK_CHECKS) + len(STREAM_CHECKS)
