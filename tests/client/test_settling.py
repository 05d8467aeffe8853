"""Settling: what a consumer says of its deliveries, when it is told, and what is stale."""

from __future__ import annotations

import pytest
import trio

from meshq.client import connect
from meshq.errors import (
    SettingsError,
    StaleDeliveryError,
    UsageError,
)
from meshq.wire import (
    KIND_HEADERS,
    KIND_PLAIN,
    Envelope,
    FrameType,
    encode_map,
)
from tests.client._server import FakeNode, fake_env

TCP = "tcp://127.0.0.1:1"
URLS = pytest.mark.parametrize("url", [TCP, "inproc://n"])


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@URLS
async def test_single_acks_are_gathered_into_ranges(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    async with connect(url, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(10))
        deliveries = await consumer.receive_many(10)
        for index in (0, 1, 2, 5, 4, 9):
            await deliveries[index].ack()
        await trio.sleep(0.001)
        assert node.heard_types().count("SETTLE") == 1
        assert node.settled == [("ack", 1, 3), ("ack", 6, 6), ("ack", 5, 5), ("ack", 10, 10)]


async def test_in_process_the_last_ack_of_all_that_is_here_is_told_at_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(4))
        for delivery in await consumer.receive_many(3):
            await delivery.ack()
        assert "SETTLE" not in node.heard_types()
        last = await consumer.receive()
        assert last is not None
        await last.ack()
        assert node.settled == [("ack", 1, 4)]


async def test_what_becomes_of_deliveries_is_told_in_order(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(10))
        deliveries = await consumer.receive_many(10)
        await deliveries[0].ack()
        await deliveries[1].nack()
        await consumer.nack(*deliveries[2:4])
        await deliveries[4].reject()
        await consumer.reject(*deliveries[5:7])
        await consumer.ack(*deliveries[7:])
        await consumer.ack()
        await trio.sleep(0.001)
        for delay in (-1, float("nan"), float("inf"), "1", True):
            with pytest.raises(SettingsError, match="delay"):
                await deliveries[0].nack(delay=delay)  # type: ignore[arg-type]
    assert node.settled == [("ack", 1, 1), ("nack", 2, 4), ("reject", 5, 7), ("ack", 8, 10)]


async def test_how_long_messages_wait_goes_with_them_and_divides_frames(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(6))
        deliveries = await consumer.receive_many(6)
        await deliveries[0].nack()
        await deliveries[1].nack(delay=0)
        await consumer.nack(*deliveries[2:4], delay=1.5)
        await deliveries[4].nack(delay=1.5)
        await deliveries[5].nack(delay=0.0001)
        await trio.sleep(0.001)
        frames = [frame for frame in node.heard if frame.type is FrameType.SETTLE]
        assert [(frame.stamp, frame.count) for frame in frames] == [(0, 1), (1, 1), (1_501, 1), (2, 1)]
    assert node.settled == [("nack", 1, 1), ("nack", 2, 2), ("nack", 3, 5), ("nack", 6, 6)]


async def test_batches_over_runs_in_any_order_are_ranges(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        for start in range(0, 30, 10):
            node.deliver("q", numbers(10, start))
        await trio.sleep(0.001)
        batch = await consumer.receive_many(100)
        await consumer.ack(*batch[5:25])
        await consumer.ack(*reversed(batch[:5]))
        await consumer.ack(*batch[25::2], *batch[26::2], confirm=True)
    assert node.settled == [
        ("ack", 6, 25),
        *(("ack", tag, tag) for tag in (5, 4, 3, 2, 1)),
        *(("ack", tag, tag) for tag in (26, 28, 30, 27, 29)),
    ]


async def test_an_ack_with_confirm_returns_when_it_is_stored(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(3))
        one, two, three = await consumer.receive_many(3)
        await one.nack()
        node.answers = False
        with trio.move_on_after(5) as scope:
            await two.ack(confirm=True)
        assert scope.cancelled_caught
        assert node.settled == [("nack", 1, 1), ("ack", 2, 2)]
        node.answers = True
        node.release()
        await three.ack(confirm=True)
        await consumer.ack(confirm=True)
    assert node.settled[-1] == ("ack", 3, 3)


async def test_many_ranges_are_split_over_frames_and_confirmed_by_the_last(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q", window=100_000) as consumer:
        for start in range(0, 10_240, 256):
            node.deliver("q", numbers(256, start))
        batch = []
        while len(batch) < 10_240:
            batch += await consumer.receive_many(100_000)
        await consumer.ack(*batch[::2], confirm=True)
    frames = [frame for frame in node.heard if frame.type is FrameType.SETTLE]
    assert [frame.count for frame in frames] == [4_096, 1_024]
    assert [bool(frame.first) for frame in frames] == [False, True]
    assert len(node.settled) == 5_120


async def test_an_ack_goes_before_whatever_the_session_does_after_it(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(2))
        one, two = await consumer.receive_many(2)
        await client.send("a", b"open the producer")
        await one.ack()
        await client.send("a", b"after the ack")
        await two.ack()
        await client.queue("q")
    types = [name for name in node.heard_types() if name in ("SETTLE", "SEND", "CALL")]
    assert types == ["SEND", "SETTLE", "SEND", "SETTLE", "CALL"]


async def test_settling_twice_is_a_mistake_that_is_named_and_changes_nothing(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(5), sequence=40)
        deliveries = await consumer.receive_many(5)
        await deliveries[2].ack()
        for again in (deliveries[2].ack, deliveries[2].nack, deliveries[2].reject):
            with pytest.raises(UsageError, match=r"sequence=42 .*was settled before"):
                await again()
        with pytest.raises(UsageError, match="sequence=42"):
            await consumer.ack(*deliveries)
        with pytest.raises(UsageError, match="sequence=40"):
            await consumer.ack(deliveries[0], deliveries[1], deliveries[0])
        await consumer.ack(*deliveries[:2], *deliveries[3:])
    assert node.settled == [("ack", 3, 3), ("ack", 1, 2), ("ack", 4, 5)]


async def test_a_delivery_is_settled_at_its_own_consumer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as one, client.consumer("r") as other:
        node.deliver("q", numbers(2))
        deliveries = await one.receive_many(2)
        with pytest.raises(UsageError, match="'q', not of 'r'"):
            await other.ack(*deliveries)
        await one.ack(*deliveries)


async def test_automatic_acks_are_given_at_hand_over(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q", ack="auto") as consumer:
        node.deliver("q", numbers(10))
        await consumer.receive()
        await consumer.receive_many(4)
        await trio.sleep(0.001)
        assert node.settled == [("ack", 1, 5)]
        delivery = await consumer.receive()
        assert delivery is not None
        with pytest.raises(UsageError, match="was settled before"):
            await delivery.ack()
    assert node.settled == [("ack", 1, 5), ("ack", 6, 6)]
    assert node.left == [(1, 7)]


async def test_settled_deliveries_hold_nothing_after_the_consumer_is_gone(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.consumer("q") as consumer:
            node.deliver("q", numbers(2))
            one, _ = await consumer.receive_many(2)
        with pytest.raises(StaleDeliveryError):
            await one.ack()
        with pytest.raises(StaleDeliveryError):
            await consumer.ack(one, confirm=True)
        assert one.body == b"0"


async def test_a_reply_goes_to_where_it_is_wanted(node: FakeNode) -> None:
    env, _ = fake_env(node)
    wanted = Envelope(KIND_PLAIN | KIND_HEADERS, b"", encode_map({"r": "answers", "c": "7"}), b"")
    nameless = Envelope(KIND_PLAIN | KIND_HEADERS, b"", encode_map({"r": "answers"}), b"")
    plain = Envelope(KIND_PLAIN, b"", b"", b"")
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(3), envelopes=[wanted, nameless, plain])
        one, two, three = await consumer.receive_many(3)
        await one.reply(b"yes")
        await two.reply(b"no", duplicate_id="d")
        with pytest.raises(UsageError, match="no reply_to"):
            await three.reply(b"?")
    assert [(address, body) for address, _, _, body in node.stored] == [("answers", b"yes"), ("answers", b"no")]
    headers = [bytes(frame.body) for frame in node.heard if frame.type is FrameType.SEND]
    assert encode_map({"c": "7"}) in headers[0]
    assert ("70" * 16 + "-2").encode() in headers[1]
