"""Connections that say nothing: who is asked, when they are given up, and what counts as a sign of life."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from meshq.wire import Frame, FrameType, Produce, encode, encode_run
from tests.broker.kit import PRODUCER
from tests.broker.test_stream_connections import connect, listening


async def test_the_node_pings_and_a_client_that_answers_is_kept() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        for _ in range(10):
            await trio.sleep(3)
            peer.send(FrameType.PONG)
        assert peer.types().count(FrameType.PING) in (9, 10)
        assert not peer.ended


async def test_a_client_that_asks_often_enough_is_not_asked_besides() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        for _ in range(10):
            await trio.sleep(2.9)
            peer.send(FrameType.PING)
        await trio.sleep(0.1)
        assert peer.types().count(FrameType.PONG) == 10
        assert peer.types().count(FrameType.PING) == 0


async def test_a_client_that_says_something_and_does_not_ask_is_asked() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        for _ in range(10):
            await trio.sleep(2.9)
            peer.send(FrameType.PONG)
        assert peer.types().count(FrameType.PING) == 9


async def test_a_client_that_is_told_much_and_says_nothing_is_asked() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        (session,) = parts[0].sessions.by_number.values()
        assert session.stream.link is not None
        for _ in range(7):
            await trio.sleep(1)
            session.stream.report(session.stream.link)
            session.stream.link.flush()
        assert peer.types().count(FrameType.PING) == 2


@pytest.mark.parametrize("spoke_at", [0.0, 0.1, 1.0, 2.9, 3.1, 5.9])
async def test_silence_is_noticed_when_the_time_to_live_is_over(spoke_at: float) -> None:
    async with listening() as parts:
        house = parts[0]
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        began = trio.current_time()
        if spoke_at:
            await trio.sleep(spoke_at)
            peer.send(FrameType.PING)
            await trio.sleep(0.001)
            began = trio.current_time()
        await peer.over.wait()
        silence = trio.current_time() - began
        assert silence == pytest.approx(9.0, abs=0.1)
        assert peer.reason == "silent"
        # Its session waits for it as long again.
        (session,) = house.sessions.by_number.values()
        assert session.stream.link is None
        assert house.sessions.expire() == pytest.approx(trio.current_time() + 9.0, abs=0.1)


async def test_a_silent_client_with_the_default_time_to_live_is_dropped_within_62_seconds() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=60_000)
        await trio.sleep(19.9)
        # Just before the node looks and pings, which is when its silence could count for longest.
        peer.send(FrameType.PONG)
        began = trio.current_time()
        await peer.over.wait()
        assert 59.9 <= trio.current_time() - began <= 62
        assert peer.reason == "silent"


async def test_a_client_whose_frame_takes_longer_to_arrive_than_silence_may_last_is_kept() -> None:
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        peer.send(FrameType.PRODUCE, Produce(producer=PRODUCER, address="q"), channel=1, first=1)
        await trio.sleep(1)
        run = encode_run([b"x" * 60])
        frame = Frame(FrameType.SEND, channel=1, first=1, count=1, table=run.table, body=bytes(run.body))
        peer.outgoing.number(frame, keep=True)
        data = encode(frame)
        for start in range(0, len(data), 10):
            peer.stream.send_nowait(data[start : start + 10])
            await trio.sleep(5)
        assert not peer.ended and parts[0].queue("q").counts.ready == 1


async def test_what_a_client_said_during_a_standstill_of_the_node_is_heard() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with listening() as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=9_000)
        await trio.sleep(2)
        peer.send(FrameType.PONG)
        clock.jump(10)
        await trio.sleep(8)
        assert not peer.ended
        await peer.over.wait()
        assert peer.reason == "silent"
