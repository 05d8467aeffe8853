"""The conformance suite for ``abc.Stream``."""

from __future__ import annotations

import sys
from typing import Final

import trio
import trio.testing

from meshq.abc import Stream
from meshq.errors import BusyError, ConnectionBrokenError, UsageError
from meshq.limits import CHECKPOINT_MESSAGES, MIB
from meshq.testing.conformance._assertions import expect, expect_equal, expect_raises
from meshq.testing.conformance._network import MakeNetworkSides, NetworkCheck, NetworkSides, closing

#: More than any system keeps for a connection on its own: the rest waits in the stream.
HUGE_BYTES: Final = 64 * MIB
#: Other systems don't all say it.
_TOLD: Final = sys.platform == "linux"


async def check_stream(make_sides: MakeNetworkSides) -> None:
    """Check that the streams of a network keep the contract of ``meshq.abc.Stream`` while nothing fails.

    ``make_sides`` is called once for each check of ``STREAM_CHECKS``, as ``check_network`` calls it.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: a stream breaks a promise.
    """
    for check in STREAM_CHECKS:
        async with make_sides() as sides:
            await check(sides)


async def read_exactly(stream: Stream, size: int) -> bytes:
    """Read exactly ``size`` bytes, in as many pieces as they come."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = await stream.receive(min(size - len(pieces), MIB))
        expect(piece, "the stream must not end before all bytes have come")
        pieces += piece
    return bytes(pieces)


async def read_to_the_end(stream: Stream) -> bytes:
    """Read until the peer closes, and return the bytes."""
    pieces = bytearray()
    while piece := await stream.receive(MIB):
        pieces += piece
    return bytes(pieces)


async def _bytes_arrive_in_order_both_ways(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        for number in range(300):
            near.send_nowait(b"there %d," % number)
            far.send_nowait(b"back %d," % number)
        there = b"".join(b"there %d," % number for number in range(300))
        back = b"".join(b"back %d," % number for number in range(300))
        expect_equal(await read_exactly(far, len(there)), there, "the server hears what was said, in order")
        expect_equal(await read_exactly(near, len(back)), back, "the client hears what was said, in order")


async def _every_kind_of_buffer_is_sent(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        near.send_nowait(b"bytes,")
        near.send_nowait(b"")
        near.send_nowait(bytearray(b"bytearray,"))
        near.send_nowait(memoryview(b"<view>")[1:5])
        near.send_nowait(memoryview(b"\x01\0\0\0\x02\0\0\0").cast("I"))
        expect_equal(
            await read_exactly(far, 28), b"bytes,bytearray,view\x01\0\0\0\x02\0\0\0", "buffers are sent as bytes"
        )


async def _a_huge_send_waits_here_and_is_flushed(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    data = bytes(range(256)) * (HUGE_BYTES // 256)
    async with closing(near, far), trio.open_nursery() as nursery:
        waiting = near.send_nowait(data)
        expect(0 < waiting <= len(data), "what the system does not take waits here and is counted")
        expect_equal(near.send_nowait(b"end"), waiting + 3, "what comes later waits behind it")
        nursery.start_soon(near.flush)
        received = await read_exactly(far, len(data) + 3)
        expect(received[:-3] == data and received[-3:] == b"end", "every byte arrives, in order")


async def _flushing_returns_when_nothing_waits(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far), trio.open_nursery() as nursery:
        await near.flush()
        size = 0
        while True:
            size += MIB
            if near.send_nowait(bytes(MIB)):
                break
        nursery.start_soon(read_exactly, far, size)
        await near.flush()
        expect_equal(near.send_nowait(b""), 0, "after a flush nothing waits")


async def _what_was_taken_does_not_change(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far), trio.open_nursery() as nursery:
        owned = bytearray(b"a" * 8 * MIB)
        near.send_nowait(owned)
        near.send_nowait(memoryview(owned)[:10].toreadonly())
        owned[:] = b"b" * len(owned)
        nursery.start_soon(near.flush)
        received = await read_exactly(far, len(owned) + 10)
        expect_equal(received.count(b"a"), len(owned) + 10, "the caller may use its buffer again at once")


async def _receive_gives_no_more_than_asked(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        near.send_nowait(bytes(100))
        left = 100
        while left:
            piece = await far.receive(7)
            expect(1 <= len(piece) <= 7, "between one byte and size_max")
            left -= len(piece)
        for size in (0, -1):
            with expect_raises(UsageError, "size_max is at least 1"):
                await far.receive(size)


async def _an_orderly_end_comes_after_the_last_byte(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        near.send_nowait(b"last words")
        near.close()
        near.close()
        expect_equal(await read_to_the_end(far), b"last words", "what was sent before closing arrives")
        expect_equal(await far.receive(10), b"", "the end stays the end")


async def _sending_to_a_closed_peer_fails_in_the_end(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        near.close()
        expect_equal(await far.receive(10), b"", "the peer has closed")
        with expect_raises(ConnectionBrokenError, "sending to nobody is noticed"):
            while True:
                far.send_nowait(b"anybody?")
                await trio.sleep(0.001)
        with expect_raises(ConnectionBrokenError, "and stays so"):
            far.send_nowait(b"anybody?")


async def _closing_wakes_reader_and_flusher(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    woken: list[str] = []

    async def read() -> None:
        with expect_raises(ConnectionBrokenError, "closing wakes the task in receive"):
            await near.receive(10)
        woken.append("reader")

    async def flush() -> None:
        with expect_raises(ConnectionBrokenError, "closing wakes the task in flush"):
            await near.flush()
        woken.append("flusher")

    async with closing(near, far), trio.open_nursery() as nursery:
        while not near.send_nowait(bytes(MIB)):
            pass
        nursery.start_soon(read)
        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        near.close()
    expect_equal(sorted(woken), ["flusher", "reader"], "both are told")


async def _a_closed_stream_refuses(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    near.close()
    async with closing(far):
        with expect_raises(ConnectionBrokenError, "a closed stream sends nothing"):
            near.send_nowait(b"late")
        with expect_raises(ConnectionBrokenError, "a closed stream receives nothing"):
            await near.receive(10)
        with expect_raises(ConnectionBrokenError, "a closed stream has nothing to flush"):
            await near.flush()


async def _an_end_is_known_to_whoever_does_not_read(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        near.send_nowait(b"last words")
        await trio.sleep(0.01)
        expect(not far.gone(), "somebody is there who has only spoken")
        near.close()
        await trio.sleep(0.1)
        expect(far.gone() or not _TOLD, "the end is known before it is read")
        expect_equal(await read_to_the_end(far), b"last words", "and what came before it can still be read")
        far.close()
        expect(far.gone() or not _TOLD, "what was closed here has ended")


async def _a_cancelled_receive_loses_nothing(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far):
        for number in range(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(far.receive, 100)
                await trio.testing.wait_all_tasks_blocked()
                # Bytes and cancellation at once: the call may give them or leave them, never lose them.
                nursery.cancel_scope.cancel()
            near.send_nowait(b"%d" % number)
            expect_equal(await far.receive(100), b"%d" % number, "a later receive has it all")


async def _a_cancelled_flush_loses_nothing(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    data = bytes(range(256)) * (HUGE_BYTES // 2 // 256)
    async with closing(near, far):
        waiting = near.send_nowait(data)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.flush)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        expect(0 < near.send_nowait(b"") <= waiting, "what waits stays in line")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.flush)
            expect(await read_exactly(far, len(data)) == data, "every byte arrives once, in order")


async def _one_task_reads_and_one_flushes(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far), trio.open_nursery() as nursery:
        while not near.send_nowait(bytes(MIB)):
            pass
        nursery.start_soon(near.receive, 10)
        nursery.start_soon(near.flush)
        await trio.testing.wait_all_tasks_blocked()
        with expect_raises(BusyError, "two tasks read"):
            await near.receive(10)
        with expect_raises(BusyError, "two tasks flush"):
            await near.flush()
        nursery.cancel_scope.cancel()


async def _a_busy_reader_lets_others_run(sides: NetworkSides) -> None:
    near, far = await sides.pair()
    async with closing(near, far), trio.open_nursery() as nursery:
        turns = [0]

        async def others() -> None:
            while True:
                turns[0] += 1
                await trio.lowlevel.checkpoint()

        near.send_nowait(bytes(1000))
        await trio.sleep(0.1)  # all has arrived; a busy task would stop a clock that jumps when all wait
        nursery.start_soon(others)
        calls = 0
        while calls < 600:
            before = turns[0]
            row = 0
            while turns[0] == before:
                expect_equal(len(await far.receive(1)), 1, "one byte was asked for")
                row += 1
                # Of two tasks that may run in one turn either may come first: two turns are sure to be enough.
                expect(row <= 2 * CHECKPOINT_MESSAGES, "every 64th call lets others run")
            calls += row
        nursery.cancel_scope.cancel()


async def _ends_close_in_either_order(sides: NetworkSides) -> None:
    for first in (0, 1):
        ends = await sides.pair()
        ends[first].close()
        expect_equal(await ends[1 - first].receive(10), b"", "the other end is told")
        ends[1 - first].close()


STREAM_CHECKS: Final[tuple[NetworkCheck, ...]] = (
    _bytes_arrive_in_order_both_ways,
    _every_kind_of_buffer_is_sent,
    _a_huge_send_waits_here_and_is_flushed,
    _flushing_returns_when_nothing_waits,
    _what_was_taken_does_not_change,
    _receive_gives_no_more_than_asked,
    _an_orderly_end_comes_after_the_last_byte,
    _sending_to_a_closed_peer_fails_in_the_end,
    _closing_wakes_reader_and_flusher,
    _a_closed_stream_refuses,
    _an_end_is_known_to_whoever_does_not_read,
    _a_cancelled_receive_loses_nothing,
    _a_cancelled_flush_loses_nothing,
    _one_task_reads_and_one_flushes,
    _a_busy_reader_lets_others_run,
    _ends_close_in_either_order,
)
