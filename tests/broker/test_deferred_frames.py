"""What a client sends behind a frame that waits for room on the disk: kept as far as it was granted, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from meshq import limits
from meshq.broker.connection._stream_connection import LOOK_S
from meshq.wire import BY_NAME, FLAG_DURABLE, Call, FrameType, Produce, encode_run
from tests.broker.kit import PRODUCER, House, RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.test_stream_connections import Parts, Peer, connect, listening

LARGE = bytes(20_000)


def waiting() -> tuple[House, RawClient, int]:
    """A client whose first run waits."""
    house = make_house(FakeLog(large_bytes=10_000), memory=16 << 20)
    client = house.client()
    producer = client.produce()
    client.put(producer, LARGE)
    assert len(house.log.asked) == 1
    return house, client, producer


def kept(client: RawClient) -> int:
    return sum(frame.size_bytes for frame in client.server.deferred.frames)


def test_who_sends_more_than_was_granted_is_ended_while_its_first_run_waits() -> None:
    house, client, producer = waiting()
    granted = client.granted
    for _ in range(100):
        client.put(producer, bytes(200_000))
        assert kept(client) <= granted + 201_000
    assert client.good_bye().code == BY_NAME["no_credit"].number
    assert client.closed and kept(client) == 0
    assert len(house.sessions.by_number) == 0
    house.log.answer()
    assert house.queue().counts.added == 0


@pytest.mark.parametrize("resumed", [False, True])
def test_who_keeps_to_its_credit_is_served(resumed: bool) -> None:
    house, client, producer = waiting()
    runs = 1
    while client.sent < client.granted:
        # The last one is more than what is left, as it may be.
        client.put(producer, bytes(9_000))
        runs += 1
    if resumed:
        client.drop()
        client.resume()
    while house.log.asked:
        house.log.answer()
        house.rest()
    assert house.queue().counts.added == runs
    assert not client.closed
    house.check()


@asynccontextmanager
async def crowded(monkeypatch: pytest.MonkeyPatch, log: FakeLog) -> AsyncIterator[tuple[Parts, Peer]]:
    """A client that has sent a run that waits, and then more calls than are kept behind it."""
    monkeypatch.setattr(limits, "HELD_BYTES_MAX", 20_000)
    async with listening(log=log) as parts:
        peer = await connect(parts)
        await peer.shake(ttl_ms=3_000)
        peer.send(FrameType.PRODUCE, Produce(producer=PRODUCER, address="q"), channel=1, first=1)
        await trio.sleep(0.001)
        run = encode_run([LARGE], None)
        peer.send(FrameType.SEND, flags=FLAG_DURABLE, channel=1, first=1, count=1, table=run.table, body=run.body)
        for call in range(2, 502):
            peer.send(FrameType.CALL, Call(operation="broker"), first=call)
            await trio.sleep(0.001)
        yield parts, peer


async def test_of_a_client_whose_calls_wait_no_more_is_read_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FakeLog(large_bytes=10_000)
    async with crowded(monkeypatch, log) as (parts, peer):
        (connection,) = parts[1].connections
        assert connection.server.deferred.crowded
        assert len(connection.server.deferred.frames) < 60
        # It is not silent, though nobody listens.
        await trio.sleep(20)
        assert len(connection.server.deferred.frames) < 60
        log.answer()
        for _ in range(100):
            await trio.sleep(0.01)
            parts[0].rest()
        assert log.asked == []
        assert peer.types().count(FrameType.ANSWER) == 501
        assert not peer.ended


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_client_that_is_not_read_and_has_gone_is_let_go(monkeypatch: pytest.MonkeyPatch, orderly: bool) -> None:
    log = FakeLog(large_bytes=10_000)
    async with crowded(monkeypatch, log) as (parts, peer):
        (connection,) = parts[1].connections
        assert connection.server.deferred.crowded
        if orderly:
            peer.stream.close()
        else:
            parts[2].reset("client", "broker")
        await trio.sleep(2 * LOOK_S)
        assert not parts[1].connections and not connection.server.deferred.frames
        (session,) = parts[0].sessions.by_number.values()
        assert session.stream.link is None
        # And nobody waits for it for ever.
        await trio.sleep(5)
        parts[0].sessions.expire()
        assert not parts[0].sessions.by_number
