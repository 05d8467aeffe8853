"""A broadcast endpoint in memory keeps the promises of an endpoint, and a broken one is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, BroadcastSender, Env
from meshq.env import real_env
from meshq.errors import BrokenError, ClosedError, UsageError
from meshq.testing import ENDPOINT_CHECKS, EndpointPlace, MemoryBroadcast, NonconformanceError, check_endpoint
from meshq.testing._broadcast import WAITING_MAX

#: How often a channel of these tests looks whether something has arrived.
POLL_S = 0.01


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
            await trio.sleep(POLL_S)
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


class IsSilentAboutTheEnd(FaultyChannel):
    """A receive that waits goes on waiting when the channel is closed."""

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self.check_open()
        while True:
            if self.arrived:
                return self.arrived.pop(0)
            await trio.sleep(POLL_S)


class EndsWithAnEmptyDatagram(FaultyChannel):
    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        self.check_open()
        while True:
            if self.arrived or self.closed:
                return self.arrived.pop(0) if self.arrived else b""
            await trio.sleep(POLL_S)


class BroadcastsWithoutACheckpoint(FaultyChannel):
    async def broadcast(self, datagram: bytes) -> None:
        if not 0 < len(datagram) <= limits.DATAGRAM_BYTES_MAX:
            raise UsageError("the size is wrong")
        self.check_open()
        self.carry(datagram)


class BreaksWhenCancelled(FaultyChannel):
    async def broadcast(self, datagram: bytes) -> None:
        try:
            await super().broadcast(datagram)
        except trio.Cancelled:
            self.everyone = []
            raise


class HearsFromItsFirstReceiveOn(FaultyChannel):
    def __init__(self, everyone: list[FaultyChannel]) -> None:
        super().__init__(everyone)
        self.listens = False

    def carry(self, datagram: bytes) -> None:
        for channel in self.everyone:
            if isinstance(channel, HearsFromItsFirstReceiveOn) and channel.listens:
                channel.arrived.append(datagram)

    async def receive(self) -> bytes:
        self.listens = True
        return await super().receive()


class ReceivesViews(FaultyChannel):
    async def receive(self) -> bytes:
        return memoryview(await super().receive())  # type: ignore[return-value]


class HasASmallerBound(FaultyChannel):
    async def broadcast(self, datagram: bytes) -> None:
        if len(datagram) > 4_096:
            raise UsageError("too large")
        await super().broadcast(datagram)


class SaysTheEndInItsOwnWords(FaultyChannel):
    def check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError


class SaysTheEndOfAWaitInItsOwnWords(FaultyChannel):
    async def receive(self) -> bytes:
        self.check_open()
        try:
            return await super().receive()
        except ClosedError:
            raise trio.ClosedResourceError from None


class ClosesOnce(FaultyChannel):
    def close(self) -> None:
        self.check_open()
        super().close()


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


class LeavesAChannelToTheCollector(FaultyEndpoint):
    async def open(self, env: Env) -> BroadcastChannel:
        channel = self.opened()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            self.everyone.remove(channel)
            raise
        return channel


class OpensASenderWhenCancelled(FaultyEndpoint):
    async def open_sender(self, env: Env) -> BroadcastSender:
        channel = self.opened()
        await trio.lowlevel.checkpoint()
        return channel


class ClosesWhenCancelled(MemoryBroadcast):
    """A channel is open before the last checkpoint of ``open``, and closed if ``open`` is cancelled there."""

    async def open(self, env: Env) -> BroadcastChannel:
        channel = await super().open(env)
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:
            channel.close()
            raise
        return channel


class CannotBeUsed(FaultyEndpoint):
    async def open(self, env: Env) -> BroadcastChannel:
        raise BrokenError("the port is taken")


class OpensWithAnErrorOfItsOwn(FaultyEndpoint):
    async def open(self, env: Env) -> BroadcastChannel:
        raise LookupError("no such place")


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
        (IsSilentAboutTheEnd, "a receive that waits hears that the channel is closed"),
        (EndsWithAnEmptyDatagram, "a receive that waits hears that the channel is closed"),
        (BroadcastsWithoutACheckpoint, "broadcast is a checkpoint"),
        (BreaksWhenCancelled, "a broadcast that was cancelled leaves a channel that sends"),
        (ReceivesViews, "receive returns bytes, not a memoryview"),
        (HearsFromItsFirstReceiveOn, "a channel hears what was broadcast before its first receive"),
        (HasASmallerBound, r"a datagram comes whole: UsageError\('too large'\) was raised"),
        (
            SaysTheEndInItsOwnWords,
            r"a closed sender sends nothing: ClosedResourceError\(\) was raised, and no",
        ),
        (SaysTheEndOfAWaitInItsOwnWords, r"says so and the others go on: ClosedResourceError\(\) was raised$"),
        (ClosesOnce, r"ClosedError\('the channel is closed'\) was raised"),
    ],
)
async def test_a_channel_with_a_fault_does_not_conform(kind: type[FaultyChannel], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        await check_endpoint(lambda: FaultyEndpoint(kind))


@pytest.mark.parametrize("kind", [OpensWhenCancelled, LeavesAChannelToTheCollector])
async def test_a_cancelled_open_that_leaves_a_channel_does_not_conform(kind: type[FaultyEndpoint]) -> None:
    with pytest.raises(NonconformanceError, match="an open that is cancelled leaves no channel"):
        await check_endpoint(lambda: kind(FaultyChannel))


async def test_a_cancelled_open_of_a_sender_that_leaves_a_channel_does_not_conform() -> None:
    with pytest.raises(NonconformanceError, match="an open_sender that is cancelled leaves no channel"):
        await check_endpoint(lambda: OpensASenderWhenCancelled(FaultyChannel))


async def test_an_open_that_closes_its_channel_when_it_is_cancelled_conforms() -> None:
    await check_endpoint(ClosesWhenCancelled)


async def test_an_error_that_the_contract_does_not_name_does_not_conform() -> None:
    with pytest.raises(NonconformanceError, match=r"LookupError\('no such place'\) was raised") as caught:
        await check_endpoint(lambda: OpensWithAnErrorOfItsOwn(FaultyChannel))
    assert isinstance(caught.value.__cause__, LookupError)


async def test_an_endpoint_that_can_not_be_used_now_is_not_judged() -> None:
    with pytest.raises(BrokenError, match="the port is taken"):
        await check_endpoint(lambda: CannotBeUsed(FaultyChannel))


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
