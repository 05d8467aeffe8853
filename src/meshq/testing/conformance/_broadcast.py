"""The conformance suite for ``abc.BroadcastEndpoint``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio
import trio.testing

from meshq import limits
from meshq.abc import BroadcastChannel, BroadcastEndpoint, Env
from meshq.env import real_env
from meshq.errors import ClosedError, UsageError
from meshq.testing.conformance._assertions import expect, expect_raises

#: How often a datagram is sent until it is heard, and for how many seconds it is listened for each time: a datagram
#: may be lost.
_ATTEMPTS: Final = 20
_LISTEN_S: Final = 0.5
_SIZES: Final = (1, 255, 1_400, limits.DATAGRAM_BYTES_MAX)


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
    the real environment.

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


async def _carries(sender: BroadcastChannel, receiver: BroadcastChannel, datagram: bytes) -> bool:
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


async def _a_datagram_comes_whole(place: EndpointPlace) -> None:
    sender, receiver = await place.open(), await place.open()
    try:
        for size in _SIZES:
            datagram = bytes(index * 7 % 256 for index in range(size))
            expect(await _carries(sender, receiver, datagram), f"a datagram of {size} bytes comes whole")
    finally:
        _close(sender, receiver)


async def _wrong_sizes_are_refused(place: EndpointPlace) -> None:
    channel = await place.open()
    try:
        for size in (0, limits.DATAGRAM_BYTES_MAX + 1):
            with expect_raises(UsageError, f"a datagram of {size} bytes is refused"):
                await channel.broadcast(bytes(size))
    finally:
        _close(channel)


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
    with trio.CancelScope() as scope:
        scope.cancel()
        await place.open()
    expect(scope.cancelled_caught, "open is a checkpoint")


def _close(*channels: BroadcastChannel) -> None:
    for channel in channels:
        channel.close()


#: Every check of the suite, each of which examines an endpoint of its own.
ENDPOINT_CHECKS: Final[tuple[Callable[[EndpointPlace], Awaitable[None]], ...]] = (
    _every_open_channel_hears_every_other,
    _a_datagram_comes_whole,
    _wrong_sizes_are_refused,
    _a_cancelled_receive_loses_nothing,
    _a_closed_channel_says_so_and_the_others_go_on,
    _an_endpoint_has_no_state,
)
