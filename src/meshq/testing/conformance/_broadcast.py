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
from meshq.concurrency import first_error
from meshq.env import real_env
from meshq.errors import BrokenError, ClosedError, UsageError
from meshq.testing.conformance._assertions import NonconformanceError, expect, expect_raises
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
        NonconformanceError: the endpoint breaks a promise, or raises an error that the contract does not name.
        BrokenError: the endpoint can't be used now.
    """
    for check in ENDPOINT_CHECKS:
        try:
            await check(EndpointPlace(make_endpoint(), env or real_env()))
        except Exception as error:
            first = first_error(error)
            if isinstance(first, NonconformanceError | BrokenError):
                raise first from first.__cause__
            raise NonconformanceError(f"{_sentence(check)}: {first!r} was raised") from first


def _sentence(check: Callable[[EndpointPlace], Awaitable[None]]) -> str:
    return str(getattr(check, "__name__", check)).strip("_").replace("_", " ")


async def _received(channel: BroadcastChannel) -> bytes:
    datagram = await channel.receive()
    expect(isinstance(datagram, bytes), f"receive returns bytes, not a {type(datagram).__name__}")
    return datagram


async def _heard(channel: BroadcastChannel, datagram: bytes) -> bool:
    """Receive until the datagram has come; other datagrams are ignored."""
    with trio.move_on_after(_LISTEN_S):
        while await _received(channel) != datagram:
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


async def _a_channel_hears_from_its_opening_on(place: EndpointPlace) -> None:
    for attempt in range(_ATTEMPTS):
        sender, receiver = await place.open(), await place.open()
        try:
            await sender.broadcast(b"early %d" % attempt)
            if await _heard(receiver, b"early %d" % attempt):
                return
        finally:
            _close(sender, receiver)
    expect(False, "a channel hears what was broadcast before its first receive")


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
            heard.append(await _received(channel))
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
            nursery.start_soon(_close_when_all_wait, first)
            told = await _is_told_of_the_end(first)
        expect(told, "a receive that waits hears that the channel is closed")
        first.close()
        with expect_raises(ClosedError, "a closed channel receives nothing"):
            await first.receive()
        with expect_raises(ClosedError, "a closed channel sends nothing"):
            await first.broadcast(b"late")
        expect(b"late" not in await _all_heard(second), "a closed channel sends nothing before the error")
        expect(await _carries(second, third, b"still here"), "channels hear each other when another one is closed")
    finally:
        _close(first, second, third)


async def _close_when_all_wait(channel: BroadcastChannel) -> None:
    await trio.testing.wait_all_tasks_blocked()
    channel.close()


async def _is_told_of_the_end(channel: BroadcastChannel) -> bool:
    """Receive until the channel is closed.  Return whether that was said, by an error and in time."""
    with trio.move_on_after(_ATTEMPTS * _LISTEN_S):
        try:
            while await _received(channel):
                pass
        except ClosedError:
            return True
    return False


async def _a_cancelled_broadcast_leaves_a_channel_that_sends(place: EndpointPlace) -> None:
    receiver = await place.open()
    senders = [await place.open(), await place.endpoint.open_sender(place.env)]
    try:
        for sender in senders:
            await _cancel_broadcasts(sender, receiver)
    finally:
        _close(receiver, *senders)


async def _cancel_broadcasts(sender: BroadcastSender, receiver: BroadcastChannel) -> None:
    async def broadcast() -> None:
        await sender.broadcast(b"perhaps")

    for checkpoint in range(CHECKPOINTS_MAX):
        cancelled = await is_cancelled(broadcast, checkpoint=checkpoint)
        expect(cancelled or checkpoint, "broadcast is a checkpoint")
        carries = await _carries(sender, receiver, b"after %d" % checkpoint)
        expect(carries, "a broadcast that was cancelled leaves a channel that sends")
        if not cancelled:
            return


async def _an_endpoint_has_no_state(place: EndpointPlace) -> None:
    for _ in range(2):
        sender, receiver = await place.open(), await place.open()
        try:
            expect(await _carries(sender, receiver, b"again"), "an endpoint is opened again when all are closed")
        finally:
            _close(sender, receiver)


async def _a_cancelled_open_leaves_no_channel(place: EndpointPlace) -> None:
    await _cancel_opens(place.open, "open")


async def _a_cancelled_open_sender_leaves_no_channel(place: EndpointPlace) -> None:
    await _cancel_opens(lambda: place.endpoint.open_sender(place.env), "open_sender")


async def _cancel_opens(opens: Callable[[], Awaitable[BroadcastSender]], name: str) -> None:
    opened: list[BroadcastSender] = []
    held: list[trio.Cancelled] = []  # with the variables of their frames, so that what was opened there is found

    async def open_one() -> None:
        try:
            opened.append(await opens())
        except trio.Cancelled as error:
            held.append(error)
            raise

    before = _channels()
    for checkpoint in range(CHECKPOINTS_MAX):
        cancelled = await is_cancelled(open_one, checkpoint=checkpoint)
        _close(*opened)
        expect(cancelled or checkpoint, f"{name} is a checkpoint")
        if not cancelled:
            return
        for channel in _channels():
            if not any(channel is one for one in before):
                expect(await _is_closed(channel), f"an {name} that is cancelled leaves no channel")


def _channels() -> list[BroadcastSender]:
    """Return every channel in this process, because other channels don't hear of a channel that never sends."""
    gc.collect()
    return [found for found in gc.get_objects() if BroadcastSender in type(found).__mro__]


async def _is_closed(channel: BroadcastSender) -> bool:
    try:
        await channel.broadcast(b"left")
    except ClosedError:
        return True
    return False


def _close(*channels: BroadcastSender) -> None:
    for channel in channels:
        channel.close()


#: Every check of the suite, each of which examines an endpoint of its own.
ENDPOINT_CHECKS: Final[tuple[Callable[[EndpointPlace], Awaitable[None]], ...]] = (
    _every_open_channel_hears_every_other,
    _a_datagram_reaches_every_other_channel,
    _a_channel_hears_from_its_opening_on,
    _a_channel_that_only_sends_is_heard,
    _a_datagram_comes_whole,
    _wrong_sizes_are_refused,
    _a_cancelled_receive_loses_nothing,
    _a_receive_that_is_cancelled_later_loses_nothing,
    _a_cancelled_broadcast_leaves_a_channel_that_sends,
    _a_closed_channel_says_so_and_the_others_go_on,
    _an_endpoint_has_no_state,
    _a_cancelled_open_leaves_no_channel,
    _a_cancelled_open_sender_leaves_no_channel,
)
