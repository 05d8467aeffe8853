"""What consumers, bodies and requests raise when the client, its session or its connection is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq import limits
from meshq.client import BodyStream, Client, Consumer, DeliveredRun, Delivery, Producer, connect
from meshq.client.incoming._inbox import Inbox
from meshq.errors import (
    AddressFullError,
    BusyError,
    CallTimeoutError,
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    NotFoundError,
    UnblockedError,
    UsageError,
)
from meshq.wire import FLAG_LARGE, Deliver, Frame, FrameType, encode_run
from tests.client._server import FakeNetwork, FakeNode, fake_env
from tests.client._waiting import Result, until

TCP = "tcp://127.0.0.1:1"
#: More than is fetched before somebody reads it.
LARGE = limits.MESSAGE_BYTES_MAX + 1
#: How something that waits for the node ends without its answer: what the error is, and what it says.
ENDS = {
    "late": (CallTimeoutError, "in time"),
    "lost": (UnblockedError, "its session was lost"),
    "given up": (ConnectionBrokenError, "all attempts to connect are used up"),
    "closed": (ClosedError, "the client is closed"),
}


async def end(how: str, node: FakeNode, network: FakeNetwork, client: Client) -> None:
    """Have it end so."""
    if how == "late":
        await trio.sleep(3)
    elif how == "lost":
        node.answers = True
        node.restart()
    elif how == "given up":
        network.nodes.clear()
        node.cut()
    else:
        await client.close()


async def cut_off(
    node: FakeNode,
    how: str,
    use: Callable[[Consumer], Awaitable[Any]],
    arrive: Callable[[FakeNode], None] = lambda node: None,
) -> MeshqError:
    """What somebody who uses a consumer is told when the node says nothing any more, and then this happens."""
    env, network = fake_env(node)
    result = Result()
    try:
        async with (
            # A task within the block would be cancelled with it.
            trio.open_nursery() as nursery,
            connect(TCP, env=env, call_timeout=2, reconnect_attempts=1) as client,
            client.consumer("q") as consumer,
        ):
            arrive(node)
            nursery.start_soon(result.of, use, consumer)
            await wait_all_tasks_blocked()
            await end(how, node, network, client)
            await until(lambda: result.done)
    except* ConnectionBrokenError:
        assert how == "given up"
    assert result.error is not None
    return result.error


# -- consumers


@pytest.mark.parametrize("how", ENDS)
async def test_an_acknowledgement_whose_answer_does_not_come_is_unknown(node: FakeNode, how: str) -> None:
    async def use(consumer: Consumer) -> None:
        delivery = await consumer.receive()
        assert delivery is not None
        node.answers = False
        await consumer.ack(delivery, confirm=True)

    error = await cut_off(node, how, use, lambda node: node.deliver("q", [b"x"]))
    kind, text = ENDS[how]
    assert (type(error), error.outcome) == (kind, "unknown")
    assert text in str(error)


WAYS: dict[str, Callable[[Consumer], Awaitable[object]]] = {
    "receive": lambda consumer: consumer.receive(),
    "receive_many": lambda consumer: consumer.receive_many(10),
}


@pytest.mark.parametrize("how", ["given up", "closed"])
@pytest.mark.parametrize("way", WAYS)
async def test_who_waits_for_messages_is_told_why_none_will_come(node: FakeNode, way: str, how: str) -> None:
    error = await cut_off(node, how, WAYS[way])
    kind, text = ENDS[how]
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize("way", WAYS)
async def test_who_waits_for_messages_is_told_that_the_queue_is_gone_or_the_consumer_closed(
    node: FakeNode, way: str
) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        with pytest.raises(NotFoundError, match="the queue 'q' was deleted") as caught:
            async with client.consumer("q") as consumer:
                node.lose_consumer("q")
                await WAYS[way](consumer)
        assert caught.value.outcome == "not_done"
        with pytest.raises(NotFoundError, match="the queue 'q' was deleted"):
            await WAYS[way](consumer)
        async with client.consumer("q") as consumer:
            await consumer.close()
            with pytest.raises(ClosedError, match="the consumer of 'q' is closed"):
                await WAYS[way](consumer)


OPENED: dict[str, Callable[[Client], AbstractAsyncContextManager[Any]]] = {
    "consumer": lambda client: client.consumer("q"),
    "producer": lambda client: client.producer("q"),
}


@pytest.mark.parametrize("how", ["late", "given up", "closed"])
@pytest.mark.parametrize("thing", OPENED)
async def test_what_could_not_be_opened_is_not_there(node: FakeNode, thing: str, how: str) -> None:
    env, network = fake_env(node)
    result = Result()
    try:
        async with (
            connect(TCP, env=env, call_timeout=2, reconnect_attempts=1) as client,
            trio.open_nursery() as nursery,
        ):
            node.answers = False
            nursery.start_soon(result.of, OPENED[thing](client).__aenter__)
            await wait_all_tasks_blocked()
            await end(how, node, network, client)
            await until(lambda: result.done)
            # An answer that comes too late opens nothing.
            node.answers = True
            node.release()
            await until(lambda: client.statistics().consumers + client.statistics().producers == 0)
    except ConnectionBrokenError:
        assert how == "given up"
    kind, text = ENDS[how]
    assert type(result.error) is kind
    assert text in str(result.error)
    if how != "late":
        with pytest.raises(kind, match=text) as caught:
            await OPENED[thing](client).__aenter__()
        assert caught.value.outcome == "not_done"


# -- producers


@pytest.mark.parametrize("closed", [True, False])
async def test_a_producer_that_is_closed_or_left_says_what_nobody_was_told_yet(node: FakeNode, closed: bool) -> None:
    env, _ = fake_env(node)
    node.refuse = lambda frame: "address_full"
    async with connect(TCP, env=env) as client:
        with pytest.raises(AddressFullError, match="2 of 2 messages") as caught:
            async with client.producer("a") as producer:
                await producer.send(b"1")
                await producer.send(b"2")
                if closed:
                    await producer.close()
        assert caught.value.outcome == "not_done"
        assert [type(error) for error in caught.value.results] == [AddressFullError] * 2


@pytest.mark.parametrize("whole", [True, False])
async def test_who_waits_for_room_in_a_producer_is_told_that_it_is_closed(node: FakeNode, whole: bool) -> None:
    env, _ = fake_env(node)
    node.confirms = False
    waiting, closing = Result(), Result()
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        producer = client.producer("a", window=1)
        await nursery.start(hold, producer)
        await producer.send(b"1")
        nursery.start_soon(waiting.of, producer.send, b"2")
        await trio.sleep(1)
        assert not waiting.done
        nursery.start_soon(closing.of, client.close if whole else producer.close)
        await wait_all_tasks_blocked()
        node.release()
        await until(lambda: waiting.done and closing.done)
        assert closing.error is None
        nursery.cancel_scope.cancel()
    said = "the client is closed" if whole else "the producer to 'a' is closed"
    assert type(waiting.error) is ClosedError
    assert said in str(waiting.error)
    assert waiting.error.outcome == "not_done"


async def hold(producer: Producer, *, task_status: trio.TaskStatus[None]) -> None:
    """A block of its own: what it says at its end is another matter."""
    with suppress(ClosedError):
        async with producer:
            task_status.started()
            await trio.sleep_forever()


# -- bodies


def deliver_large(node: FakeNode, size: int = LARGE) -> None:
    """A message whose body is read when somebody asks for it, or unasked if it is small enough."""
    session = node.session
    (channel,) = session.consumers
    about = {"address": "q", "producer": b"p" * 16, "number": 1, "sequence": 1, "size": size}
    header = Deliver(**about).encode()  # type: ignore[arg-type]
    table = encode_run([b""]).table
    session.say(
        Frame(
            FrameType.DELIVER, flags=FLAG_LARGE, channel=channel, first=1, stamp=1, header=header, count=1, table=table
        )
    )
    node.flush()


async def received(consumer: Consumer) -> Delivery:
    delivery = await consumer.receive()
    assert delivery is not None
    return delivery


async def read(consumer: Consumer) -> None:
    await (await received(consumer)).read()


async def iterate(consumer: Consumer) -> None:
    async with (await received(consumer)).open() as stream:
        await anext(stream)


@pytest.mark.parametrize("how", ["late", "given up", "closed"])
@pytest.mark.parametrize("use", [read, iterate])
async def test_a_body_whose_bytes_do_not_come_was_not_read(
    node: FakeNode, use: Callable[[Consumer], Awaitable[None]], how: str
) -> None:
    error = await cut_off(node, how, use, deliver_large)
    kind, text = ENDS[how]
    assert (type(error), error.outcome) == (kind, "not_done")
    assert text in str(error)


async def test_a_message_whose_body_is_under_way_when_all_ends_is_not_received(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[DeliveredRun] = []
    # Another thread may take at once what has arrived.
    monkeypatch.setattr(Inbox, "arrived", lambda inbox, run: arrived.append(run))
    env, network = fake_env(node)
    with suppress(ConnectionBrokenError):
        async with connect(TCP, env=env, reconnect_attempts=0) as client, client.consumer("q") as consumer:
            deliver_large(node, LARGE - 1)
            await wait_all_tasks_blocked()
            assert consumer._inbox.waiting == 1
            await end("given up", node, network, client)
            await until(lambda: client.statistics().state == "failed")
    assert not arrived


async def test_a_body_is_read_by_one_task_at_a_time_in_one_block(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        deliver_large(node)
        stream: BodyStream = (await received(consumer)).open()
        with pytest.raises(ClosedError, match="use it in 'async with'") as closed:
            await anext(stream)
        assert closed.value.outcome == "not_done"
        async with trio.open_nursery() as nursery, stream:
            nursery.start_soon(Result().of, stream.__anext__)
            await wait_all_tasks_blocked()
            with pytest.raises(BusyError, match="two tasks read one body") as busy:
                await anext(stream)
            assert busy.value.outcome == "not_done"
            nursery.cancel_scope.cancel()
        with pytest.raises(ClosedError, match="a body is opened once; open"):
            await stream.__aenter__()


# -- requests


@pytest.mark.parametrize("how", ENDS)
async def test_a_request_without_an_answer_is_unknown(node: FakeNode, how: str) -> None:
    env, network = fake_env(node)
    node.answer_values["create_temporary_queue"] = {"name": "temporary.1"}
    result = Result()
    try:
        async with connect(TCP, env=env, reconnect_attempts=1) as client, trio.open_nursery() as nursery:
            nursery.start_soon(result.of, lambda: client.request("a", b"?", timeout=3))
            await wait_all_tasks_blocked()
            assert node.bodies == [b"?"]
            await end(how, node, network, client)
            await until(lambda: result.done)
    except ConnectionBrokenError:
        assert how == "given up"
    assert type(result.error) is ENDS[how][0]
    assert result.error is not None
    assert result.error.outcome == "unknown"
    if how in ("given up", "closed"):
        with pytest.raises(ENDS[how][0], match=ENDS[how][1]) as caught:
            await client.request("a", b"?", timeout=3)
        assert caught.value.outcome == "not_done"


@pytest.mark.parametrize(
    ("refusal", "kind"), [("address_full", AddressFullError), ("not_found", NotFoundError), ("usage", UsageError)]
)
async def test_a_request_that_is_refused_was_not_done(node: FakeNode, refusal: str, kind: type[MeshqError]) -> None:
    env, _ = fake_env(node)
    node.answer_values["create_temporary_queue"] = {"name": "temporary.1"}
    async with connect(TCP, env=env) as client:
        node.refuse = lambda frame: refusal
        with pytest.raises(kind) as caught:
            await client.request("a", b"?", timeout=3)
        assert type(caught.value) is kind
        assert caught.value.outcome == "not_done"
    assert not node.bodies
