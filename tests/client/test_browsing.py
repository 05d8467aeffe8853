"""A browse at the client: it ends, makes room by itself, and does not begin anew behind somebody's back."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from meshq.client import connect
from meshq.errors import NotFoundError, RemoteProtocolError, UnblockedError, UsageError
from meshq.wire import BY_NAME, Consume, FrameType, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until_attached

TCP = "tcp://127.0.0.1:1"


async def test_it_acknowledges_what_it_hands_over_and_ends_when_the_node_says_so(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q", browse=True, window=3) as browse:
        (asked,) = [header_of(frame, Consume) for frame in node.heard if frame.type is FrameType.CONSUME]
        assert (asked.browse, asked.exclusive, asked.window) == (True, False, 3)
        node.deliver("q", [b"1", b"2", b"3"])
        first = await browse.receive()
        assert first is not None and first.body == b"1"
        await trio.sleep(1)
        assert node.settled == [("ack", 1, 1)]
        with pytest.raises(UsageError, match="only looks"):
            await first.ack()
        async with trio.open_nursery() as nursery:
            await browse.receive_many(2)
            waiting = Result()
            nursery.start_soon(waiting.of, browse.receive)
            await trio.sleep(1)
            assert not waiting.done
            node.lose_consumer("q", 0)
        assert waiting.done and waiting.error is None
        assert await browse.receive() is None and await browse.receive_many(3) == []
        assert [delivery async for delivery in browse] == []
        assert browse.statistics().state == "open"
    assert "LEAVE" not in [frame.type.name for frame in node.heard]


async def test_what_has_arrived_before_the_end_is_handed_over_also_after_the_session_is_lost(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q", browse=True) as browse:
        node.deliver("q", [b"1", b"2"])
        node.lose_consumer("q", 0)
        await trio.sleep(1)
        node.restart()
        await until_attached(client, 2)
        assert [delivery.body async for delivery in browse] == [b"1", b"2"]
        await client.send("a", b"x")
    assert [frame.type.name for frame in node.heard].count("CONSUME") == 1
    assert node.settled == []


async def test_a_browse_that_is_cut_says_so_and_is_not_begun_anew(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        with pytest.raises(UnblockedError, match="begin another one"):
            async with client.consumer("q", browse=True) as browse:
                node.deliver("q", [b"1", b"2"])
                assert await browse.receive() is not None
                node.restart()
                await until_attached(client, 2)
                await browse.receive()
        await client.send("a", b"the client goes on")
    assert [frame.type.name for frame in node.heard].count("CONSUME") == 1


async def test_a_browse_goes_on_over_a_connection_that_comes_back(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q", browse=True) as browse:
        node.deliver("q", [b"1"])
        node.cut()
        await until_attached(client, 2)
        node.deliver("q", [b"2"])
        node.lose_consumer("q", 0)
        assert [delivery.body async for delivery in browse] == [b"1", b"2"]


async def test_an_end_that_comes_before_the_answer_opens_the_browse_and_ends_it(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        taken: list[bytes] = []

        async def browse_all() -> None:
            async with client.consumer("q", browse=True) as browse:
                taken.extend([delivery.body async for delivery in browse])

        nursery.start_soon(browse_all)
        await trio.testing.wait_all_tasks_blocked()
        node.deliver("q", [b"1", b"2"])
        node.lose_consumer("q", 0)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == [b"1", b"2"]
        node.answers = True
        node.release()
        await client.send("a", b"the client goes on")
    assert client.statistics().connected == 1


@pytest.mark.parametrize("code", [0, BY_NAME["queue_deleted"].number])
async def test_an_end_that_is_said_twice_breaks_the_protocol(node: FakeNode, code: int) -> None:
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError, match="CONSUMER_LOST for channel 1"):
        async with connect(TCP, env=env) as client:
            with suppress(NotFoundError):
                async with client.consumer("q", browse=True):
                    node.lose_consumer("q", code)
                    node.session.consumers[1] = "q"
                    node.lose_consumer("q", 0)
                    await trio.sleep(1)
            await trio.sleep(1)
