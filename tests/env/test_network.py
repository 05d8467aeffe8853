"""TCP streams, over loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshq.env import TcpNetwork
from meshq.testing._conformance_network import NETWORK_CHECKS, Check, Sides
from meshq.testing._conformance_stream import STREAM_CHECKS


@asynccontextmanager
async def tcp_sides(host: str = "127.0.0.1") -> AsyncIterator[Sides]:
    yield Sides(TcpNetwork(), TcpNetwork(), host)


@pytest.mark.parametrize("check", (*NETWORK_CHECKS, *STREAM_CHECKS))
async def test_tcp_conforms(check: Check) -> None:
    async with tcp_sides() as sides:
        await check(sides)


@pytest.mark.parametrize("check", NETWORK_CHECKS)
async def test_tcp_over_ipv6_conforms(check: Check) -> None:
    async with tcp_sides("::1") as sides:
        await check(sides)
