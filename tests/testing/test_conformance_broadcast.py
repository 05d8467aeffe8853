"""A broadcast endpoint in memory keeps the promises of an endpoint, and a broken one is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env
from meshq.env import real_env
from meshq.errors import ClosedError, UsageError
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


class FaultyChannel(BroadcastChannel):
    """A channel in memory; classes below have one fault each."""

    def __init__(self, everyone: list[FaultyChannel]) -> None:
        self.everyone = everyone
        self.arrived: list[bytes] = []
        self.closed = False

    async def broadcast(self, datagram: bytes) -> None:
        if not 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX:
            raise UsageError("the size is wrong")
        await trio.lowlevel.checkpoint()
        self.check_open()
        self.carry(datagram)

    def carry(self, datagram: bytes) -> None:
        for channel in self.everyone:
            channel.arrived.append(datagram)

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self.check_open()
        while not self.arrived:
            await trio.sleep(0.001)
            self.check_open()
        return self.arrived.pop(0)

    def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError("the channel is closed")


class OneQueue(FaultyChannel):
    """Each datagram reaches one reader only."""

    def __init__(self, everyone: list[FaultyChannel]) -> None:
        super().__init__(everyone)
        self.arrived = everyone[0].arrived if everyone else []

    def carry(self, datagram: bytes) -> None:
        self.arrived.append(datagram)


class Halves(FaultyChannel):
    def carry(self, datagram: bytes) -> None:
        super().carry(datagram)
        super().carry(datagram[: len(datagram) // 2] or datagram)


class Empties(FaultyChannel):
    def carry(self, datagram: bytes) -> None:
        super().carry(datagram)
        super().carry(b"")


class SendsWrongSizes(FaultyChannel):
    async def broadcast(self, datagram: bytes) -> None:
        if len(datagram) > limits.DATAGRAM_BYTES_MAX:
            self.carry(datagram[: limits.DATAGRAM_BYTES_MAX])
        await super().broadcast(datagram)


class SendsWhenClosed(FaultyChannel):
    async def broadcast(self, datagram: bytes) -> None:
        if self.closed:
            self.carry(datagram)
        await super().broadcast(datagram)


class LosesWhenCancelled(FaultyChannel):
    async def receive(self) -> bytes:
        datagram = await super().receive()
        await trio.lowlevel.checkpoint()
        return datagram


class FaultyEndpoint(BroadcastEndpoint):
    """An endpoint in memory whose channels are of one class."""

    def __init__(self, kind: type[FaultyChannel]) -> None:
        self.kind = kind
        self.everyone: list[FaultyChannel] = []

    async def open(self, env: Env) -> BroadcastChannel:
        await trio.lowlevel.checkpoint()
        return self.opened()

    def opened(self) -> FaultyChannel:
        channel = self.kind(self.everyone)
        self.everyone.append(channel)
        return channel


class OpensWhenCancelled(FaultyEndpoint):
    async def open(self, env: Env) -> BroadcastChannel:
        channel = self.opened()
        await trio.lowlevel.checkpoint()
        return channel


async def test_the_channel_without_a_fault_conforms() -> None:
    await check_endpoint(lambda: FaultyEndpoint(FaultyChannel))


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (OneQueue, "one datagram reaches every other channel"),
        (LosesWhenCancelled, "a receive that is cancelled at any checkpoint loses no datagram"),
        (Halves, "no part of a datagram comes as a datagram"),
        (Empties, "no part of a datagram comes as a datagram"),
        (SendsWrongSizes, "nothing is sent of a datagram that is refused"),
        (SendsWhenClosed, "a closed channel sends nothing before the error"),
    ],
)
async def test_a_channel_with_a_fault_does_not_conform(kind: type[FaultyChannel], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        await check_endpoint(lambda: FaultyEndpoint(kind))


async def test_a_cancelled_open_that_leaves_a_channel_does_not_conform() -> None:
    with pytest.raises(NonconformanceError, match="an open that is cancelled leaves no channel"):
        await check_endpoint(lambda: OpensWhenCancelled(FaultyChannel))


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
