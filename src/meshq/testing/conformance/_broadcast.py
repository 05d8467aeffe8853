"""The conformance suite for ``abc.BroadcastEndpoint``."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio
import trio.testing

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, BroadcastSender, Env
from meshq.env import real_env
from meshq.errors import ClosedError, UsageError
from meshq.testing.conformance._assertions import expect, expect_raises
from meshq.testing.conformance._cancelling import CHECKPOINTS_MAX, is_cancelled

#: How often a datagram is sent until it is heard, and for how many seconds it is listened for each time: a datagram
#: may be lost.
_ATTEMPTS: Final = 20
_LISTEN_S: Final = 0.5
_SIZES: Final = (1, 255, 1_400, limits.DATAGRAM_BYTES_MAX)
#: Bytes from which on a piece of a datagram is not mistaken for the datagram of a stranger.
_PIECE_BYTES_MIN: Final = 8


@attrs.frozen
class EndpointPlace:
    """An endpoint that is examined, and the environment in which its channels are opened."""

    endpoint: BroadcastEndpoint
    env: Env

    async def open(self) -> BroadcastChannel:
        """Open a channel."""
        return await self.endpoint.open(self.env)


async def check_endpoint(make_endpoint: Callable[[], BroadcastEndpoint], *, env: Env | None = None) -> None:
    """Check that a broadcast endpoint keeps the contract of ``meshq.abc.BroadcastEndpoint``.

    ``make_endpoint`` is called once for each check of ``ENDPOINT_CHECKS``.  ``env``: where channels are opened; None:
    the real environment.  No other task of the process opens a channel while the suite runs: the suite looks for
    channels that a cancelled ``open`` has left in memory.

    Checkpoint: always.
    Cancellation: ends the check that runs; its channels are closed.
    Raises:
        NonconformanceError: the endpoint breaks a promise.
    """
    for check in ENDPOINT_CHECKS:
        await check(EndpointPlace(make_endpoint(), env or real_env()))


async def _heard(channel: BroadcastChannel, datagram: bytes) -> bool:
    """Receive until the datagram has come; other datagrams are ignored."""
    with trio.move_on_after(_LISTEN_S):
        while await channel.receive() != datagram:
            pass
        return True
    return False


async def _carries(sender: BroadcastSender, receiver: BroadcastChannel, datagram: bytes) -> bool:
    for _ in range(_ATTEMPTS):
        await sender.broadcast(datagram)
        if await _heard(receiver, datagram):
            return True
    return False


async def _every_open_channel_hears_every_other(place: EndpointPlace) -> None:
    channels = [await place.open() for _ in range(3)]
    try:
        for number, sender in enumerate(channels):
            for other, receiver in enumerate(channels):
                if sender is not receiver:
                    datagram = b"from %d to %d" % (number, other)
                    expect(await _carries(sender, receiver, datagram), "a channel hears what another one broadcasts")
    finally:
        _close(*channels)


async def _a_datagram_reaches_every_other_channel(place: EndpointPlace) -> None:
    sender, *receivers = [await place.open() for _ in range(3)]
    try:
        for attempt in range(_ATTEMPTS):
            datagram = b"for all %d" % attempt
            await sender.broadcast(datagram)
            if all([await _heard(receiver, datagram) for receiver in receivers]):
                return
        expect(False, "one datagram reaches every other channel that is open")
    finally:
        _close(sender, *receivers)


async def _a_channel_that_only_sends_is_heard(place: EndpointPlace) -> None:
    receiver = await place.open()
    sender = await place.endpoint.open_sender(place.env)
    try:
        expect(await _carries(sender, receiver, b"from a sender"), "a channel hears what a sender broadcasts")
        sender.close()
        with expect_raises(ClosedError, "a closed sender sends nothing"):
            await sender.broadcast(b"late")
    finally:
        sender.close()
        receiver.close()


async def _a_datagram_comes_whole(place: EndpointPlace) -> None:
    sender, receiver = await place.open(), await place.open()
    sent = [_datagram(size) for size in _SIZES]
    arrived: list[bytes] = []
    try:
        for _ in range(_ATTEMPTS):
            for datagram in sent:
                if datagram not in arrived:
                    await sender.broadcast(datagram)
                    arrived += await _all_heard(receiver)
    finally:
        _close(sender, receiver)
    for datagram in sent:
        expect(datagram in arrived, f"a datagram of {len(datagram)} bytes comes whole")
    pieces = [found for found in arrived if found not in sent and any(_is_part(found, datagram) for datagram in sent)]
    expect(not pieces, "no part of a datagram comes as a datagram")


async def _wrong_sizes_are_refused(place: EndpointPlace) -> None:
    channel, other = await place.open(), await place.open()
    try:
        for size in (0, limits.DATAGRAM_BYTES_MAX + 1):
            datagram = _datagram(size)
            with expect_raises(UsageError, f"a datagram of {size} bytes is refused"):
                await channel.broadcast(datagram)
            sent = any(_is_part(found, datagram) for found in await _all_heard(other))
            expect(not sent, "nothing is sent of a datagram that is refused")
    finally:
        _close(channel, other)


def _datagram(size: int) -> bytes:
    return bytes(index * 7 % 256 for index in range(size))


def _is_part(found: bytes, datagram: bytes) -> bool:
    return not found or (len(found) >= _PIECE_BYTES_MIN and found in datagram)


async def _all_heard(channel: BroadcastChannel) -> list[bytes]:
    """Return the datagrams that come within ``_LISTEN_S`` seconds."""
    heard: list[bytes] = []
    with trio.move_on_after(_LISTEN_S):
        while True:
            heard.append(await channel.receive())
    return heard


async def _a_cancelled_receive_loses_nothing(place: EndpointPlace) -> None:
    sender, receiver = await place.open(), await place.open()
    try:
        for attempt in range(_ATTEMPTS):
            datagram = b"kept %d" % attempt
            with trio.CancelScope() as scope:
                scope.cancel()
                await receiver.receive()
            expect(scope.cancelled_caught, "receive is a checkpoint")
            await sender.broadcast(datagram)
            with trio.move_on_after(0):
                while await receiver.receive() != datagram:
                    pass
                return
            if await _heard(receiver, datagram):
                return
        expect(False, "a datagram that arrived is received after a receive that was cancelled")
    finally:
        _close(sender, receiver)


async def _a_receive_that_is_cancelled_later_loses_nothing(place: EndpointPlace) -> None:
    sender, receiver = await place.open(), await place.open()
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await receiver.receive())

    async def kept(checkpoint: int) -> bool:
        for attempt in range(_ATTEMPTS):
            datagram = b"kept at %d %d" % (checkpoint, attempt)
            await sender.broadcast(datagram)
            cancelled = False
            with trio.move_on_after(_LISTEN_S):
                cancelled = await is_cancelled(receive, checkpoint=checkpoint)
                expect(cancelled or checkpoint, "receive is a checkpoint, also when a datagram has arrived")
            if datagram in received or await _heard(receiver, datagram):
                return True
        return False

    try:
        for checkpoint in range(CHECKPOINTS_MAX):
            expect(await kept(checkpoint), "a receive that is cancelled at any checkpoint loses no datagram")
            if received:
                return
    finally:
        _close(sender, receiver)


async def _a_closed_channel_says_so_and_the_others_go_on(place: EndpointPlace) -> None:
    first, second, third = await place.open(), await place.open(), await place.open()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_closed_while_it_waits, first)
            await trio.testing.wait_all_tasks_blocked()
            first.close()
        first.close()
        with expect_raises(ClosedError, "a closed channel receives nothing"):
            await first.receive()
        with expect_raises(ClosedError, "a closed channel sends nothing"):
            await first.broadcast(b"late")
        expect(b"late" not in await _all_heard(second), "a closed channel sends nothing before the error")
        expect(await _carries(second, third, b"still here"), "channels hear each other when another one is closed")
    finally:
        _close(first, second, third)


async def _closed_while_it_waits(channel: BroadcastChannel) -> None:
    with expect_raises(ClosedError, "a receive that waits hears that the channel is closed"):
        for _ in range(_ATTEMPTS):
            await channel.receive()


async def _an_endpoint_has_no_state(place: EndpointPlace) -> None:
    for _ in range(2):
        sender, receiver = await place.open(), await place.open()
        try:
            expect(await _carries(sender, receiver, b"again"), "an endpoint is opened again when all are closed")
        finally:
            _close(sender, receiver)


async def _a_cancelled_open_leaves_no_channel(place: EndpointPlace) -> None:
    opened: list[BroadcastChannel] = []

    async def open_one() -> None:
        opened.append(await place.open())

    before = _channels()
    for checkpoint in range(CHECKPOINTS_MAX):
        cancelled = await is_cancelled(open_one, checkpoint=checkpoint)
        _close(*opened)
        expect(cancelled or checkpoint, "open is a checkpoint")
        left = [channel for channel in _channels() if not any(channel is one for one in (*before, *opened))]
        expect(not left, "an open that is cancelled leaves no channel")
        if not cancelled:
            return


def _channels() -> list[object]:
    """Return every channel in this process, because other channels don't hear of a channel that never sends."""
    gc.collect()
    return [found for found in gc.get_objects() if BroadcastChannel in type(found).__mro__]


def _close(*channels: BroadcastChannel) -> None:
    for channel in channels:
        channel.close()


#: Every check of the suite, each of which examines an endpoint of its own.
ENDPOINT_CHECKS: Final[tuple[Callable[[EndpointPlace], Awaitable[None]], ...]] = (
    _every_open_channel_hears_every_other,
    _a_datagram_reaches_every_other_channel,
    _a_channel_that_only_sends_is_heard,
    _a_datagram_comes_whole,
    _wrong_sizes_are_refused,
    _a_cancelled_receive_loses_nothing,
    _a_receive_that_is_cancelled_later_loses_nothing,
    _a_closed_channel_says_so_and_the_others_go_on,
    _an_endpoint_has_no_state,
    _a_cancelled_open_leaves_no_channel,
)
