"""A broadcast endpoint in memory keeps the promises of an endpoint, and a broken one is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env
from meshq.env import real_env
from meshq.testing import ENDPOINT_CHECKS, EndpointPlace, MemoryBroadcast, NonconformanceError, check_endpoint
from meshq.testing._broadcast import WAITING_MAX


@pytest.mark.parametrize("check", ENDPOINT_CHECKS)
async def test_the_endpoint_in_memory_conforms(check: Callable[[EndpointPlace], Awaitable[None]]) -> None:
    await check(EndpointPlace(MemoryBroadcast(), real_env()))


class Fault(BroadcastEndpoint, BroadcastChannel):
    """An endpoint in memory with one fault, and each of its channels."""

    def __init__(
        self, fault: str, inner: MemoryBroadcast | None = None, channel: BroadcastChannel | None = None
    ) -> None:
        self.fault = fault
        self.inner = inner or MemoryBroadcast()
        self.channel = channel

    async def open(self, env: Env) -> BroadcastChannel:
        return Fault(self.fault, self.inner, await self.inner.open(env))

    async def broadcast(self, datagram: bytes) -> None:
        assert self.channel is not None
        if self.fault == "every size" and not 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX:
            await trio.lowlevel.checkpoint()
        elif self.fault == "cut short":
            await self.channel.broadcast(datagram[:1_000])
        elif self.fault == "deaf":
            await trio.lowlevel.checkpoint()
        else:
            await self.channel.broadcast(datagram)

    async def receive(self) -> bytes:
        assert self.channel is not None
        return await self.channel.receive()

    def close(self) -> None:
        assert self.channel is not None
        self.channel.close()


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("deaf", "hears what another one broadcasts"),
        ("cut short", "a datagram of 1400 bytes comes whole"),
        ("every size", "a datagram of 0 bytes is refused"),
    ],
)
async def test_an_endpoint_with_a_fault_does_not_conform(fault: str, promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        await check_endpoint(lambda: Fault(fault))


async def test_a_slow_reader_keeps_the_newest_datagrams() -> None:
    endpoint = MemoryBroadcast()
    env = real_env()
    sender, receiver = await endpoint.open(env), await endpoint.open(env)
    for number in range(WAITING_MAX + 2):
        await sender.broadcast(b"%d" % number)
    assert await receiver.receive() == b"2"


async def test_what_is_broadcast_while_the_endpoint_is_cut_is_lost() -> None:
    endpoint = MemoryBroadcast()
    env = real_env()
    sender, receiver = await endpoint.open(env), await endpoint.open(env)
    endpoint.cut()
    await sender.broadcast(b"1")
    endpoint.heal()
    await sender.broadcast(b"2")
    assert await receiver.receive() == b"2"
