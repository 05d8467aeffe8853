"""Clients that ask and don't take the answers: a broker keeps so much for them and no more."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import limits
from meshq.wire import BY_NAME, Call, Consume, Frame, FrameType, encode
from tests.broker.test_stream_connections import AT_ONCE, Parts, Peer, connect, listening

#: A question with a long answer.
ASKING = Call(operation="queues", arguments=("after", ""))


async def flooding(parts: Parts, calls: int, **attach: Any) -> Peer:
    """A client that asks and asks, and has read nothing since its session began."""
    peer = await connect(parts, reads=False)
    async with trio.open_nursery() as reading:
        reading.start_soon(peer.read)
        await peer.shake(**attach)
        reading.cancel_scope.cancel()
    await trio.sleep(0.001)
    for call in range(1, calls + 1):
        peer.send(FrameType.CALL, ASKING, first=call)
        await trio.sleep(0.001)
    return peer


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 1 << 20])
async def test_of_a_client_that_does_not_read_nothing_more_is_taken_until_it_does(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(limits, "UNREAD_BYTES_MAX", 100_000)
    async with listening() as parts:
        house, listeners, _, nursery = parts
        for number in range(100):
            house.core.definitions.create_queue(f"q{number:03}", address=None, routing="anycast", durable=False)
        peer = await flooding(parts, 1_000, window_bytes=window, ttl_ms=60_000)
        (connection,) = listeners.connections
        (session,) = house.sessions.by_number.values()
        most = session.stream.outgoing.last
        assert connection._link.waiting < 110_000 and most < 600
        await trio.sleep(10)
        assert session.stream.outgoing.last == most
        nursery.start_soon(peer.read)
        await trio.sleep(1)
        assert peer.types().count(FrameType.ANSWER) == 1_000


async def test_who_reads_slowly_lives_and_who_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNREAD_BYTES_MAX", 1_000)
    # A reader's kernel tells of what was read in quarters of its buffer.
    settings = attrs.evolve(AT_ONCE, buffer_bytes=8_000)
    async with listening(settings=settings) as parts:
        house, listeners, _, _ = parts
        for number in range(100):
            house.core.definitions.create_queue(f"q{number:03}", address=None, routing="anycast", durable=False)
        peer = await flooding(parts, 300, ttl_ms=3_000)
        for _ in range(20):
            await trio.sleep(1)
            assert await peer.stream.receive(5_000)
        assert len(listeners.connections) == 1
        await trio.sleep(7)
        assert listeners.connections == []


async def test_a_client_that_never_says_what_has_come_is_told_that_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNREPORTED_BYTES_MAX", 100_000)
    async with listening() as parts:
        house = parts[0]
        for number in range(100):
            house.core.definitions.create_queue(f"q{number:03}", address=None, routing="anycast", durable=False)
        for honest in (True, False):
            peer = await connect(parts)
            await peer.shake(window_bytes=64 * 1024)
            for call in range(1, 500):
                frame = Frame(FrameType.CALL, header=ASKING.encode(), first=call)
                peer.outgoing.number(frame, keep=True)
                frame.received = peer.incoming.last if honest else 0
                if not peer.ended:
                    peer.stream.send_nowait(encode(frame))
                await trio.sleep(0.001)
            assert peer.ended is not honest
        assert peer.reason == "no_credit"


async def test_a_good_bye_waits_for_what_is_written_already_and_ends_with_the_connection() -> None:
    async with listening(settings=attrs.evolve(AT_ONCE, buffer_bytes=2_000)) as parts:
        house, listeners, network, nursery = parts
        peer = await flooding(parts, 0)
        other = house.client()
        other.put(other.produce(), bytes(50_000))
        peer.send(FrameType.CONSUME, Consume(queue="q", window=50, window_bytes=1 << 20), channel=1, first=1)
        await trio.sleep(0.1)
        (connection,) = listeners.connections
        connection.server.say_close(BY_NAME["stopping"].number, "the node is stopping")
        # The connection writes already: nobody else may flush its stream.
        with trio.move_on_after(1) as waits:
            await connection.flushed()
        assert waits.cancelled_caught
        nursery.start_soon(peer.read)
        await connection.flushed()
        await peer.wait_for(FrameType.CLOSE)
        network.reset("client", "broker")
        await trio.sleep(0.1)
        await connection.flushed()
