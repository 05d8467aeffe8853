"""Requests of a client whose node is lost, cut and restarted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq.client import connect
from meshq.errors import CallTimeoutError, MeshqError, UnblockedError
from meshq.wire import KIND_HEADERS, KIND_PLAIN, Consume, Envelope, encode_map, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until, until_attached

TCP = "tcp://127.0.0.1:1"


def consumed(node: FakeNode) -> list[str]:
    """The queues that consumers were opened for."""
    return [header_of(frame, Consume).queue for frame in node.heard if frame.type.name == "CONSUME"]


def answered(correlation_id: str) -> Envelope:
    return Envelope(KIND_PLAIN | KIND_HEADERS, b"", encode_map({"c": correlation_id}), b"")


@pytest.fixture
def giving(node: FakeNode) -> FakeNode:
    """A node that gives temporary queues."""
    node.answer_values = {"create_temporary_queue": {"name": "$temporary.1"}}
    return node


async def test_a_request_goes_on_when_its_session_is_resumed(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        result = Result()
        nursery.start_soon(result.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        giving.cut()
        await until_attached(client, 2)
        assert not result.done and client.statistics().requests == 1
        giving.deliver("$temporary.1", [b"other", b"y"], envelopes=[answered("9"), answered("1")])
        await until(lambda: result.done)
        assert result.error is None and result.value.body == b"y"
        assert client.statistics().late_answers == 1
    assert consumed(giving) == ["$temporary.1"]


async def test_a_reply_queue_is_not_asked_for_again_in_another_session(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        results = [Result() for _ in range(2)]
        for result in results:
            nursery.start_soon(result.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        giving.restart()
        await until(lambda: all(result.done for result in results))
        assert [(type(result.error), result.error.outcome) for result in results if result.error] == [
            (UnblockedError, "unknown")
        ] * 2
        assert consumed(giving) == ["$temporary.1"]
        giving.answer_values = {"create_temporary_queue": {"name": "$temporary.2"}}
        again = Result()
        nursery.start_soon(again.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        assert consumed(giving) == ["$temporary.1", "$temporary.2"]
        giving.deliver("$temporary.2", [b"y"], envelopes=[answered("3")])
        await until(lambda: again.done)
        assert again.value.body == b"y" and again.value.queue == "$temporary.2"


async def test_a_request_that_never_had_a_reply_queue_is_not_done(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client:
        for refuse, timeout in ((True, 60), (False, 1)):
            giving.refuse_call = lambda operation, refuse=refuse: "too_many" if refuse else None  # type: ignore[misc]
            giving.answers = refuse
            with pytest.raises(MeshqError) as raised:
                await client.request("a", b"x", timeout=timeout)
            assert raised.value.outcome == "not_done"
            assert isinstance(raised.value, CallTimeoutError) is not refuse
        assert giving.bodies == [] and client.statistics().requests == 0


async def test_a_session_that_is_lost_while_the_reply_queue_is_made_has_requested_nothing(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        giving.answers = False
        result = Result()
        nursery.start_soon(result.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        giving.restart()
        await until(lambda: result.done)
        assert isinstance(result.error, UnblockedError) and result.error.outcome == "not_done"
        assert giving.bodies == []


async def test_an_answer_that_cannot_be_read_ends_nothing(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        result = Result()
        nursery.start_soon(result.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        odd = Envelope(KIND_PLAIN | KIND_HEADERS, b"", b"\xc1", b"")
        giving.deliver("$temporary.1", [b"odd", b"y"], envelopes=[odd, answered("1")])
        await until(lambda: result.done)
        assert result.value.body == b"y" and client.statistics().late_answers == 1


async def test_what_impatient_requests_have_begun_is_used_by_the_next_one(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        giving.answers = False
        for _ in range(5):
            with pytest.raises(CallTimeoutError) as caught:
                await client.request("a", b"x", timeout=1)
            assert caught.value.outcome == "not_done"
        assert giving.heard_types().count("CALL") == 1 and not consumed(giving)
        # The queue is there, and to be opened.
        giving.release()
        giving.answer_values = {"create_temporary_queue": {"name": "$temporary.2"}}
        for _ in range(2):
            with pytest.raises(CallTimeoutError):
                await client.request("a", b"x", timeout=1)
        assert giving.heard_types().count("CALL") == 1 and consumed(giving) == ["$temporary.1"] * 2
        giving.release()
        giving.answers = True
        result = Result()
        nursery.start_soon(result.of, lambda: client.request("a", b"x", timeout=60))
        await wait_all_tasks_blocked()
        giving.deliver("$temporary.1", [b"y"], envelopes=[answered("1")])
        await until(lambda: result.done)
        assert result.error is None and result.value.body == b"y"


async def test_what_was_begun_in_a_session_that_is_gone_is_begun_anew(giving: FakeNode) -> None:
    env, _ = fake_env(giving)
    async with connect(TCP, env=env) as client:
        giving.answers = False
        with pytest.raises(CallTimeoutError):
            await client.request("a", b"x", timeout=1)
        giving.answers = True
        giving.answer_values = {"create_temporary_queue": {"name": "$temporary.2"}}
        giving.restart()
        await until_attached(client, 2)
        with pytest.raises(CallTimeoutError) as caught:
            await client.request("a", b"x", timeout=1)
        assert caught.value.outcome == "unknown" and consumed(giving) == ["$temporary.2"]
