"""Consumers: handing over, settling, closing."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from meshq.client import Delivery, connect
from meshq.errors import (
    BusyError,
    ClosedError,
    NotFoundError,
    RemoteProtocolError,
    SettingsError,
    StaleDeliveryError,
)
from meshq.ids import MessageId
from meshq.wire import (
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Consume,
    Envelope,
    Frame,
    FrameType,
    encode_map,
    header_of,
)
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until_attached

TCP = "tcp://127.0.0.1:1"
URLS = pytest.mark.parametrize("url", [TCP, "inproc://n"])


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@URLS
async def test_messages_are_handed_over_in_order_one_by_one_or_together(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    async with connect(url, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", numbers(5))
        node.deliver("q", numbers(5, 5))
        await trio.sleep(0.001)
        first = await consumer.receive()
        assert first is not None
        rest = await consumer.receive_many(3)
        # As soon as there is one, and no more than asked for, across runs.
        more = await consumer.receive_many(4)
        last = await consumer.receive_many(100)
        assert [delivery.body for delivery in [first, *rest, *more, *last]] == numbers(10)
        assert [len(rest), len(more), len(last)] == [3, 4, 2]
        assert {delivery.consumer for delivery in [first, *last]} == {consumer}


async def test_a_delivery_tells_everything_about_its_message(node: FakeNode) -> None:
    env, _ = fake_env(node)
    full = Envelope(
        KIND_PLAIN | KIND_ID | KIND_HEADERS | KIND_PROPERTIES,
        b"dup",
        encode_map({"c": "corr", "r": "answers", "t": "text/plain", "x": 1}),
        encode_map({"region": "emea", "n": 1}),
    )
    plain = Envelope(KIND_PLAIN, b"", b"", b"")
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver(
            "q",
            [b"one", b"two", b"three"],
            envelopes=[full, plain, full],
            number=7,
            sequence=100,
            step=3,
            counts=(1, 4),
            address="orders",
        )
        one, two, three = await consumer.receive_many(3)
    assert (one.body, two.body, three.body) == (b"one", b"two", b"three")
    assert one.properties == {"region": "emea", "n": 1}
    assert two.properties == {}
    assert [delivery.message_id for delivery in (one, two, three)] == [
        MessageId(b"p" * 16, 7),
        MessageId(b"p" * 16, 10),
        MessageId(b"p" * 16, 13),
    ]
    assert [delivery.sequence for delivery in (one, two, three)] == [100, 103, 106]
    assert [delivery.delivery_count for delivery in (one, two, three)] == [1, 4, 1]
    assert [delivery.redelivered for delivery in (one, two, three)] == [False, True, False]
    assert (one.address, one.queue, one.timestamp, one.durable, one.priority) == ("orders", "q", 1.5, False, 4)
    assert (one.correlation_id, one.reply_to, one.content_type) == ("corr", "answers", "text/plain")
    assert (two.correlation_id, two.reply_to, two.content_type, two.duplicate_id) == (None, None, None, None)
    assert one.duplicate_id == b"dup"
    assert repr(one) == f"<Delivery {'70' * 16}-7 of 'q' sequence=100 count=1>"


async def test_headers_and_properties_that_are_broken_are_a_protocol_error_when_read(node: FakeNode) -> None:
    env, _ = fake_env(node)
    broken = Envelope(KIND_PLAIN | KIND_HEADERS | KIND_PROPERTIES, b"", b"\xff", b"\xff")
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"x"], envelopes=[broken])
        delivery = await consumer.receive()
        assert delivery is not None
        with pytest.raises(RemoteProtocolError):
            _ = delivery.properties
        with pytest.raises(RemoteProtocolError):
            _ = delivery.reply_to
        assert delivery.body == b"x"


async def test_the_time_for_receiving_is_exact(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        started = trio.current_time()
        assert await consumer.receive(timeout=5) is None
        assert trio.current_time() - started == 5
        assert await consumer.receive_many(10, timeout=2.5) == []
        assert trio.current_time() - started == 7.5
        assert await consumer.receive(timeout=0) is None
        assert await consumer.receive_many(10, timeout=0) == []
        assert trio.current_time() - started == 7.5
        node.deliver("q", numbers(2))
        await trio.sleep(0.001)
        delivery = await consumer.receive(timeout=0)
        assert delivery is not None
        assert len(await consumer.receive_many(10, timeout=math.inf)) == 1
        for timeout in (-1, "1", math.nan):
            with pytest.raises(SettingsError):
                await consumer.receive(timeout=timeout)  # type: ignore[arg-type]
        for n in (0, -1, 1.0, "1", True):
            with pytest.raises(SettingsError):
                await consumer.receive_many(n)  # type: ignore[arg-type]


async def test_a_cancelled_receive_loses_nothing(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        taken: list[bytes] = []

        async def receive() -> None:
            while True:
                delivery = await consumer.receive()
                assert delivery is not None
                taken.append(delivery.body)

        for number in range(50):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                node.deliver("q", [b"%d" % number])
                if number % 2:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        rest = await consumer.receive_many(100, timeout=1)
    assert taken + [delivery.body for delivery in rest] == numbers(50)


async def test_two_tasks_may_not_receive_from_one_consumer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.receive)
        await trio.sleep(1)
        with pytest.raises(BusyError):
            await consumer.receive()
        with pytest.raises(BusyError):
            await consumer.receive_many(1)
        nursery.cancel_scope.cancel()


async def test_iteration_hands_over_everything_and_yields_now_and_then(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer, trio.open_nursery() as nursery:
        for start in range(0, 6_400, 200):
            node.deliver("q", numbers(200, start))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        bodies = []
        async for delivery in consumer:
            bodies.append(delivery.body)
            if len(bodies) == 6_400:
                break
        assert bodies == numbers(6_400)
        assert turns >= 90
        nursery.cancel_scope.cancel()


async def test_iteration_ends_when_the_consumer_is_closed(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer, trio.open_nursery() as nursery:
        ended = False

        async def iterate() -> None:
            nonlocal ended
            async for _ in consumer:
                pass
            ended = True

        nursery.start_soon(iterate)
        await trio.sleep(1)
        await consumer.close()
        await trio.sleep(1)
        assert ended


# -- life


@pytest.mark.parametrize("lost", [False, True])
async def test_a_consumer_that_is_closed_while_it_is_opened_says_so_to_the_opener(node: FakeNode, lost: bool) -> None:
    env, _ = fake_env(node)
    node.answers = False
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        consumer, opening = client.consumer("q"), Result()
        nursery.start_soon(opening.of, consumer.__aenter__)
        await trio.testing.wait_all_tasks_blocked()
        await consumer.close()
        node.answers = True
        if lost:
            node.restart()
            await until_attached(client, 2)
        else:
            node.release()
        await trio.testing.wait_all_tasks_blocked()
        assert type(opening.error) is ClosedError
        await client.send("a", b"the client goes on")
    assert len(node.left) == (not lost)


async def test_a_consumer_says_what_it_wants_and_what_was_handed_over(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("a::q", window=7, window_bytes=1_000) as consumer:
        node.deliver("a::q", numbers(5))
        await consumer.receive_many(3)
    header = next(header_of(frame, Consume) for frame in node.heard if frame.type is FrameType.CONSUME)
    assert (header.queue, header.window, header.window_bytes) == ("a::q", 7, 1_000)
    assert node.left == [(1, 4)]


async def test_what_arrives_after_leaving_is_dropped_without_harm(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, call_timeout=1) as client:
        node.answers = True
        async with client.consumer("q") as consumer:
            node.deliver("q", numbers(2))
            await consumer.receive()
            node.answers = False
        node.session.consumers[1] = "q"
        node.deliver("q", numbers(2))
        await trio.sleep(1)
        node.answers = True
        node.release()
        await client.queue("q")
        assert client.statistics().connected == 1


async def test_a_deleted_queue_ends_its_consumer_and_its_deliveries(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        kept: list[Delivery] = []
        with pytest.raises(NotFoundError, match="was deleted") as caught:
            async with client.consumer("q") as consumer:
                node.deliver("q", numbers(3))
                kept += await consumer.receive_many(1)
                node.lose_consumer("q")
                await trio.sleep_forever()
        assert caught.value.outcome == "not_done"
        assert consumer.statistics().state == "failed"
        with pytest.raises(StaleDeliveryError):
            await kept[0].ack()
        # There is nothing left to leave.
        assert node.left == []
        await client.send("a", b"x")


async def test_tags_that_do_not_follow_end_the_client(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env) as client, client.consumer("q"):
            node.session.tags[1] = 5
            node.deliver("q", numbers(1))
            await trio.sleep(1)
    assert caught.value.refusal == "bad_tag"


@pytest.mark.parametrize("frame_type", [FrameType.DELIVER, FrameType.CONFIRM, FrameType.REFUSE])
async def test_a_channel_that_was_never_opened_ends_the_client(node: FakeNode, frame_type: FrameType) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env):
            node.session.say(Frame(frame_type, channel=99, first=1))
            node.flush()
            await trio.sleep(1)
    assert caught.value.refusal == "bad_channel"


async def test_an_answer_that_nobody_asked_for_and_a_confirm_of_what_was_not_sent_end_the_client(
    node: FakeNode,
) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError):
        async with connect(TCP, env=env):
            node.session.say(Frame(FrameType.ANSWER, first=99))
            node.flush()
            await trio.sleep(1)
    with pytest.raises(RemoteProtocolError):
        async with connect(TCP, env=env) as client:
            await client.send("a", b"x")
            node.session.say(Frame(FrameType.CONFIRM, channel=1, first=2))
            node.flush()
            await trio.sleep(1)


async def test_a_frame_that_a_node_may_not_send_ends_the_client(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError) as caught:
        async with connect(TCP, env=env):
            node.session.say(Frame(FrameType.SEND, channel=1, first=1))
            node.flush()
            await trio.sleep(1)
    assert caught.value.refusal == "illegal_frame"


async def test_a_consumer_shows_its_state(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        consumer = client.consumer("q")
        async with consumer:
            node.deliver("q", numbers(3))
            await consumer.receive()
            assert repr(consumer) == "<Consumer 'q' open ready=2>"
            assert consumer.statistics().received == 1
        assert repr(consumer) == "<Consumer 'q' closed ready=0>"
        with pytest.raises(ClosedError):
            await consumer.receive()
