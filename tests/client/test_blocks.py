"""The rule of every ``async with`` block: what leaves it, when its thing fails and when it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq.client import Client, connect
from meshq.errors import (
    ClosedError,
    ConnectionBrokenError,
    InvariantError,
    MeshqError,
    NotFoundError,
    UsageError,
)
from meshq.wire import Frame, FrameType
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, cut_off, until, until_attached

TCP = "tcp://127.0.0.1:1"
Thing = Callable[[Client], Any]

#: Every context manager of the client that lives in a client.
THINGS: dict[str, Thing] = {
    "producer": lambda client: client.producer("a"),
    "consumer": lambda client: client.consumer("q"),
    "session": lambda client: client.session(),
}


class OwnError(Exception):
    """What a body raises."""


@pytest.mark.parametrize("url", [TCP, "inproc://n"])
async def test_what_the_body_of_a_client_raises_leaves_it_as_it_was(node: FakeNode, url: str) -> None:
    env, _ = fake_env(node)
    error = OwnError()
    with pytest.raises(OwnError) as caught:
        async with connect(url, env=env):
            raise error
    assert caught.value is error
    assert node.heard_types()[-1] == "CLOSE"


@pytest.mark.parametrize("thing", THINGS)
async def test_what_the_body_raises_leaves_the_block_as_it_was(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    error = OwnError()
    async with connect(TCP, env=env) as client:
        with pytest.raises(OwnError) as caught:
            async with THINGS[thing](client):
                raise error
        assert caught.value is error
        assert error.__context__ is None
        await client.send("a", b"the client goes on")


@pytest.mark.parametrize("thing", THINGS)
async def test_a_group_that_the_body_raises_stays_that_group(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    group = ExceptionGroup("mine", [OwnError(), OwnError()])
    async with connect(TCP, env=env) as client:
        with pytest.raises(ExceptionGroup) as caught:
            async with THINGS[thing](client):
                raise group
        assert caught.value is group


@pytest.mark.parametrize("thing", ["client", *THINGS])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_goes_before_everything(node: FakeNode, thing: str, interrupt: type[BaseException]) -> None:
    env, _ = fake_env(node)
    with pytest.raises(interrupt):
        async with connect(TCP, env=env, reconnect_attempts=0) as client:
            if thing == "client":
                raise interrupt
            async with THINGS[thing](client):
                node.cut()
                raise interrupt


@pytest.mark.parametrize("thing", ["client", *THINGS])
async def test_when_the_connection_is_lost_for_good_the_body_is_cancelled_and_the_error_leaves(
    node: FakeNode, thing: str
) -> None:
    env, network = fake_env(node)
    reached = False
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, reconnect_attempts=1) as client:
            if thing == "client":
                network.nodes.clear()
                node.cut()
                await trio.sleep_forever()
            async with THINGS[thing](client):
                network.nodes.clear()
                node.cut()
                await trio.sleep_forever()
                reached = True
    assert not reached
    assert not isinstance(caught.value.__context__, trio.Cancelled)


async def test_an_error_of_the_body_goes_along_with_that_of_the_thing(node: FakeNode) -> None:
    env, _ = fake_env(node)
    own = OwnError()
    with pytest.raises(ConnectionBrokenError) as caught:
        async with connect(TCP, env=env, reconnect_attempts=0):
            node.cut()
            try:
                await trio.sleep_forever()
            finally:
                raise own
    assert caught.value.__context__ is own


async def test_a_body_that_ends_before_it_is_told_still_learns_of_the_failure(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(NotFoundError):
        async with connect(TCP, env=env) as client, client.consumer("q"):
            node.lose_consumer("q")
            with trio.CancelScope(shield=True):
                await trio.sleep(1)


async def test_a_body_that_meets_the_error_itself_lets_it_pass_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        with pytest.raises(NotFoundError) as caught:
            async with client.consumer("q") as consumer, trio.open_nursery() as nursery:

                async def lose() -> None:
                    await trio.sleep(1)
                    node.lose_consumer("q")

                nursery.start_soon(lose)
                await consumer.receive()
    assert str(caught.value) == "the queue 'q' was deleted"


async def test_a_body_that_wraps_the_error_keeps_its_chain_free_of_circles(node: FakeNode) -> None:
    env, _ = fake_env(node)
    with pytest.raises(NotFoundError) as caught:
        async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
            node.lose_consumer("q")
            try:
                await trio.sleep(1)
            finally:
                try:
                    with trio.CancelScope(shield=True):
                        await consumer.receive()
                except MeshqError as error:
                    raise OwnError from error
    seen: list[BaseException] = []
    link: BaseException | None = caught.value
    while link is not None:
        assert all(link is not other for other in seen)
        seen.append(link)
        link = link.__context__
    assert isinstance(caught.value.__context__, OwnError)


@pytest.mark.parametrize("thing", ["client", *THINGS])
async def test_a_cancelled_body_closes_the_thing_and_the_cancellation_goes_on(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    made: Any = None
    with trio.move_on_after(5) as scope:
        async with connect(TCP, env=env) as client:
            made = client
            if thing != "client":
                async with THINGS[thing](client) as made:
                    await trio.sleep_forever()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert made.statistics().state == "closed"
    assert node.heard_types()[-1] == "CLOSE"


async def test_cancelling_while_connecting_leaves_nothing(node: FakeNode) -> None:
    env, network = fake_env(node)
    network.black_holes["127.0.0.1", 1] = None
    with trio.move_on_after(1) as scope:
        async with connect(TCP, env=env):
            pytest.fail("nobody answers")
    assert scope.cancelled_caught
    with trio.move_on_after(1) as scope:
        node.mute = True
        network.black_holes.clear()
        async with connect(TCP, env=env):
            pytest.fail("nobody answers")
    assert scope.cancelled_caught
    assert all(stream.closed for stream in node.streams)


@pytest.mark.parametrize("thing", ["producer", "consumer"])
async def test_cancelling_while_opening_closes_it_again_and_the_client_goes_on(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        node.answers = False
        with trio.move_on_after(1) as scope:
            async with THINGS[thing](client):
                pytest.fail("nobody answers")
        assert scope.cancelled_caught
        assert node.left == []
        node.answers = True
        node.release()
        await trio.sleep(1)
        # Only now it is known to be open, and can be left.
        assert len(node.left) == 1
        assert client.statistics().producers == client.statistics().consumers == 0
        await client.send("a", b"x")


@pytest.mark.parametrize("thing", ["producer", "consumer"])
async def test_opening_that_is_refused_raises_the_refusal(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    node.refuse_call = lambda operation: "usage" if operation in ("produce a", "consume q") else None
    async with connect(TCP, env=env) as client:
        with pytest.raises(UsageError, match="is refused"):
            async with THINGS[thing](client):
                pytest.fail("it was refused")
        node.refuse_call = lambda operation: None
        async with THINGS[thing](client):
            pass


@pytest.mark.parametrize("thing", ["producer", "consumer"])
async def test_opening_that_is_not_answered_in_time_is_given_up(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    node.answers = False
    async with connect(TCP, env=env, call_timeout=3) as client:
        with pytest.raises(TimeoutError):
            async with THINGS[thing](client):
                pytest.fail("it was not answered")


@pytest.mark.parametrize("thing", ["client", *THINGS])
async def test_what_is_closed_before_its_block_is_entered_stays_closed(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        made = connect(TCP, env=env) if thing == "client" else THINGS[thing](client)
        await made.close()
        await made.close()
        for _ in range(2):
            with pytest.raises(ClosedError, match="was closed before it was open") as caught:
                await made.__aenter__()
            assert caught.value.outcome == "not_done"
        assert made.statistics().state in ("closed", "new")
        await made.close()
        await client.send("a", b"the client goes on")


@pytest.mark.parametrize("thing", ["producer", "consumer"])
async def test_what_is_closed_while_it_is_opened_says_so_where_it_was_entered(node: FakeNode, thing: str) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await cut_off(client, node, network)
        made, result = THINGS[thing](client), Result()
        nursery.start_soon(result.of, made.__aenter__)
        await trio.sleep(1)
        await made.close()
        with trio.fail_after(1):
            await until(lambda: result.done)
        assert isinstance(result.error, ClosedError)
        network.nodes["127.0.0.1", 1] = node
        await until_attached(client, 2)
        assert not {"PRODUCE", "CONSUME"} & set(node.heard_types())


@pytest.mark.parametrize("thing", ["producer", "consumer"])
async def test_what_is_entered_before_its_client_says_what_is_wrong(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    client = connect(TCP, env=env)
    made = THINGS[thing](client)
    for _ in range(2):
        with pytest.raises(UsageError, match="the client is not open: use it in 'async with'"), trio.fail_after(60):
            await made.__aenter__()
    assert made.statistics().state == "closed"
    calls = (made.send(b"x"),) if thing == "producer" else (made.receive(), made.ack(confirm=True))
    for call in calls:
        with pytest.raises(UsageError, match="is not open: use it in 'async with'"), trio.fail_after(60):
            await call
    async with client, made:
        assert made.statistics().state == "open"


@pytest.mark.parametrize("thing", ["client", *THINGS])
async def test_a_block_that_is_not_entered_can_not_be_left(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        made = connect(TCP, env=env) if thing == "client" else THINGS[thing](client)
        with pytest.raises(UsageError, match="is not open"):
            await made.__aexit__(None, None, None)
        async with made:
            pass
        with pytest.raises(UsageError, match="is not open"):
            await made.__aexit__(None, None, None)


@pytest.mark.parametrize("thing", ["client", *THINGS])
async def test_closing_twice_is_silent_and_a_block_is_entered_once(node: FakeNode, thing: str) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        made = client if thing == "client" else THINGS[thing](client)
        if thing == "client":
            await made.close()
            await made.close()
        else:
            async with made:
                await made.close()
                await made.close()
        with pytest.raises(UsageError, match="was used before"):
            await made.__aenter__()
        await made.close()


async def test_things_outside_their_block_say_what_is_wrong(node: FakeNode) -> None:
    env, _ = fake_env(node)
    client = connect(TCP, env=env)
    for call in (lambda: client.send("a", b"x"), lambda: client.queue("a"), client.flush):
        with pytest.raises(UsageError, match="async with"):
            await call()
    async with client:
        producer, consumer = client.producer("a"), client.consumer("q")
        with pytest.raises(UsageError, match="async with"):
            await producer.send(b"x")
        with pytest.raises(UsageError, match="async with"):
            await consumer.receive()
        async with producer, consumer:
            pass
        with pytest.raises(ClosedError):
            await producer.send(b"x")
        with pytest.raises(ClosedError):
            await consumer.receive()
    for call in (lambda: client.send("a", b"x"), lambda: client.queue("a"), client.flush):
        with pytest.raises(ClosedError):
            await call()
    with pytest.raises(ClosedError):
        async with client.producer("a"):
            pytest.fail("the client is closed")


async def test_closing_a_client_ends_the_calls_of_other_tasks(node: FakeNode) -> None:
    env, _ = fake_env(node)
    errors: list[tuple[str, str]] = []

    async def call(name: str, function: Callable[[], Any]) -> None:
        try:
            await function()
        except ClosedError as error:
            errors.append((name, error.outcome))

    async with connect(TCP, env=env) as client, client.consumer("q") as consumer, trio.open_nursery() as nursery:
        await client.send("a", b"1")
        node.confirms = node.answers = False
        nursery.start_soon(call, "send", lambda: client.send("a", b"x"))
        nursery.start_soon(call, "call", lambda: client.queue("a"))
        nursery.start_soon(call, "receive", consumer.receive)
        await trio.sleep(1)
        await client.close()
    assert sorted(errors) == [("call", "unknown"), ("receive", "not_done"), ("send", "unknown")]


async def test_a_node_that_does_not_hear_the_good_bye_is_not_waited_for_for_ever(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env):
        node.mute = True
        started = trio.current_time()
    assert trio.current_time() - started == pytest.approx(5)


async def test_bytes_that_can_not_go_at_once_are_written_later(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        stream = node.streams[-1]
        stream.stuck = True
        nursery.start_soon(client.send, "a", b"x")
        await trio.sleep(1)
        assert node.bodies == []
        stream.unstick()
    assert node.bodies == [b"x"]


async def test_a_defect_of_ours_leaves_the_block_as_itself(node: FakeNode) -> None:
    env, _ = fake_env(node)

    def break_down(frame: Frame) -> None:
        raise InvariantError("planted")

    with pytest.raises(InvariantError, match="planted"):
        async with connect(TCP, env=env) as client, client.consumer("q"):
            client._session._handlers[FrameType.CREDIT] = break_down
            node.give_credit(1)
            await trio.sleep_forever()
    with pytest.raises(ClosedError, match="InvariantError") as caught:
        await client.send("a", b"x")
    assert caught.value.outcome == "not_done"
