"""A cursor at the client: its lease, its place over lost sessions, and what its calls raise when no answer comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq.client import Client, Cursor, SequenceHole, connect
from meshq.client.receive._cursor_records import add_holes
from meshq.errors import BusyError, CallTimeoutError, ClosedError, ConnectionBrokenError, CursorLostError
from meshq.wire import BY_NAME, Call, Consume, FrameType, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until

TCP = "tcp://127.0.0.1:1"
PLACE = {"queue": "q", "fence": 3, "epoch": 2, "start": 1, "processed": 4, "pinned": 4, "high": 9}
CALLS: dict[str, Callable[[Cursor], Awaitable[Any]]] = {
    "ack_to": lambda cursor: cursor.ack_to(5),
    "pin": lambda cursor: cursor.pin(5),
    "seek": lambda cursor: cursor.seek("latest"),
    "high_mark": lambda cursor: cursor.high_mark(),
    "lag": lambda cursor: cursor.lag(),
    "holes": lambda cursor: cursor.holes(4, 9),
    "receive": lambda cursor: cursor.receive(),
    "receive_many": lambda cursor: cursor.receive_many(3),
}

every_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture
def keeper(node: FakeNode) -> Iterator[FakeNode]:
    """A node that has a cursor."""
    for operation in ("renew_cursor", "pin_cursor", "ack_cursor"):
        node.answer_values[operation] = dict(PLACE)
    node.answer_values["open_cursor"] = {"held": False, **PLACE}
    node.answer_values["cursor_lag"] = {"messages": 5, "bytes": 7, "age_ms": 1_500}
    node.answer_values["holes"] = {"more": False}
    yield node


def asked(node: FakeNode) -> list[str]:
    """The operations that the node was asked for."""
    return [header_of(frame, Call).operation for frame in node.heard if frame.type is FrameType.CALL]


def cursor_of(client: Client) -> Cursor:
    """A cursor whose lease is not renewed in the time of a test."""
    return client.cursor("q", "c", lease=3_600)


async def test_the_lease_is_renewed_when_a_third_has_passed_and_released_at_the_end(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, client.cursor("q", "c", lease=3) as cursor:
        assert (cursor.fence, cursor.epoch, cursor.position, cursor.processed) == (3, 2, 4, 4)
        await trio.sleep(2.5)
        assert asked(keeper) == ["open_cursor", "renew_cursor", "renew_cursor"]
        await cursor.release()
        await cursor.release()
        await trio.sleep(10)
    assert asked(keeper)[3:] == ["release_cursor"]


async def test_a_lease_that_is_lost_ends_the_block_and_is_not_released(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client:
        with pytest.raises(CursorLostError) as caught:
            async with client.cursor("q", "c", lease=3) as cursor:
                keeper.refuse_call = lambda operation: "cursor_taken" if operation == "renew_cursor" else None
                await trio.sleep(10)
        assert caught.value.reason == "taken" and "release_cursor" not in asked(keeper)
        with pytest.raises(CursorLostError):
            await cursor.receive()


@pytest.mark.parametrize("why", ["forbidden", "cursor_deleted"])
async def test_a_lease_that_may_not_be_renewed_any_more_ends_the_block_at_once(keeper: FakeNode, why: str) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client:
        with pytest.raises(BY_NAME[why].error):
            async with client.cursor("q", "c", lease=3):
                keeper.refuse_call = lambda operation: why if operation == "renew_cursor" else None
                await trio.sleep(10)
        assert asked(keeper).count("renew_cursor") == 1


async def test_a_cursor_that_is_gone_with_its_queue_is_released_in_silence(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client):
        keeper.refuse_call = lambda operation: "not_found" if operation == "release_cursor" else None


async def test_a_place_does_not_fall_when_the_answer_of_an_earlier_call_is_taken_later(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor:
        keeper.answer_values["ack_cursor"] = {**PLACE, "processed": 7}
        await cursor.ack_to(7)
        # This answer knows nothing of that.
        await cursor.high_mark()
        assert cursor.processed == 7


async def test_a_hole_that_goes_on_in_the_next_page_is_one(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor:
        # A node that says the same for ever is not asked for ever.
        page = {"lo0": 4, "hi0": 6, "kind0": "expired", "lo1": 8, "hi1": 9, "kind1": "lost"}
        keeper.answer_values["holes"] = {**page, "more": True}
        assert await cursor.holes(4, 9) == [SequenceHole(4, 6, "expired"), SequenceHole(8, 9, "lost")]
    found = [SequenceHole(1, 4, "expired")]
    add_holes(found, page)
    assert found == [SequenceHole(1, 6, "expired"), SequenceHole(8, 9, "lost")]


async def test_a_new_session_reads_on_behind_the_last_message(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor, trio.open_nursery() as nursery:
        first = Result()
        nursery.start_soon(first.of, cursor.receive)
        await wait_all_tasks_blocked()
        keeper.deliver("q", [b"a"], sequence=6)
        await until(lambda: first.done)
        assert cursor.position == 7
        keeper.restart()
        again = Result()
        nursery.start_soon(again.of, cursor.receive)
        await until(lambda: len([one for one in keeper.heard if one.type is FrameType.CONSUME]) == 2)
        asked_for = [header_of(one, Consume) for one in keeper.heard if one.type is FrameType.CONSUME]
        assert [(one.lo, one.hi, one.cursor, one.fence) for one in asked_for] == [(4, 0, "c", 3), (7, 0, "c", 3)]
        nursery.cancel_scope.cancel()


async def test_who_waits_is_told_that_another_owner_has_the_cursor(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client:
        with pytest.raises(CursorLostError):
            async with cursor_of(client) as cursor, trio.open_nursery() as nursery:
                result = Result()
                nursery.start_soon(result.of, cursor.receive)
                await wait_all_tasks_blocked()
                keeper.lose_consumer("q", BY_NAME["cursor_taken"].number)
                await until(lambda: result.done)
        assert type(result.error) is CursorLostError


@pytest.mark.parametrize("name", ["receive", "receive_many", "seek"])
async def test_two_tasks_may_not_receive_from_one_cursor(keeper: FakeNode, name: str) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor, trio.open_nursery() as nursery:
        nursery.start_soon(cursor.receive)
        await wait_all_tasks_blocked()
        with pytest.raises(BusyError):
            await CALLS[name](cursor)
        nursery.cancel_scope.cancel()


async def test_iteration_ends_when_the_cursor_is_released(keeper: FakeNode) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor:
        await cursor.release()
        assert [message async for message in cursor] == []
        with pytest.raises(StopAsyncIteration):
            await anext(cursor)


@every_call
async def test_a_call_that_is_refused_as_another_owners_ends_the_cursor(keeper: FakeNode, name: str) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client:
        with pytest.raises(CursorLostError):
            async with cursor_of(client) as cursor:
                keeper.refuse_call = lambda operation: "cursor_taken"
                await CALLS[name](cursor)
        assert name in ("lag", "holes") or "release_cursor" not in asked(keeper)


@every_call
async def test_a_call_of_a_cursor_that_is_not_answered_in_time_is_unknown(keeper: FakeNode, name: str) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env, call_timeout=2) as client, cursor_of(client) as cursor:
        keeper.answers = False
        with pytest.raises(CallTimeoutError):
            await CALLS[name](cursor)
        keeper.answers = True


@every_call
async def test_a_call_of_a_cursor_without_a_connection_is_told_when_it_is_given_up(keeper: FakeNode, name: str) -> None:
    env, network = fake_env(keeper)
    result = Result()
    with pytest.raises(ConnectionBrokenError):
        async with (
            connect(TCP, env=env, reconnect_attempts=1) as client,
            cursor_of(client) as cursor,
            trio.open_nursery() as nursery,
        ):
            keeper.answers = False
            nursery.start_soon(result.of, CALLS[name], cursor)
            await wait_all_tasks_blocked()
            network.nodes.clear()
            keeper.cut()
            await trio.sleep(1_000)
    assert type(result.error) is ConnectionBrokenError


@every_call
async def test_a_call_of_a_cursor_whose_client_is_closed_is_told(keeper: FakeNode, name: str) -> None:
    env, _ = fake_env(keeper)
    async with connect(TCP, env=env) as client, cursor_of(client) as cursor, trio.open_nursery() as nursery:
        keeper.answers = False
        result = Result()
        nursery.start_soon(result.of, CALLS[name], cursor)
        await wait_all_tasks_blocked()
        await client.close()
        await until(lambda: result.done)
        assert type(result.error) is ClosedError


async def test_a_cursor_that_can_not_be_opened_says_why(node: FakeNode) -> None:
    env, network = fake_env(node)
    node.answers = False
    async with connect(TCP, env=env, call_timeout=2) as client:
        with pytest.raises(CallTimeoutError):
            async with cursor_of(client):
                pass
    with pytest.raises(ClosedError):
        async with cursor_of(client):
            pass
    result = Result()
    with pytest.raises(ConnectionBrokenError):
        async with connect(TCP, env=env, reconnect_attempts=1) as client, trio.open_nursery() as nursery:
            nursery.start_soon(result.of, cursor_of(client).__aenter__)
            await wait_all_tasks_blocked()
            network.nodes.clear()
            node.cut()
            await trio.sleep(1_000)
    assert type(result.error) is ConnectionBrokenError
