"""What is promised about connections, by example: what a user writes, and what comes of it."""

from __future__ import annotations

import math

import pytest
import trio

from meshq.client import ClientFactory, Disconnected, connect
from meshq.errors import ConnectionBrokenError
from meshq.wire import Consume, FrameType, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import until, until_attached

TCP = "tcp://127.0.0.1:1"


def test_the_defaults_of_a_client() -> None:
    settings = ClientFactory("inproc://n").settings
    assert (settings.initial_connect_attempts, settings.reconnect_attempts) == (1, math.inf)
    assert (settings.retry_interval, settings.retry_interval_multiplier, settings.max_retry_interval) == (0.1, 2.0, 2.0)
    assert (settings.call_timeout, settings.call_failover_timeout) == (30, 30)
    assert (settings.connection_ttl, settings.check_period) == (60, 30)


async def test_the_defaults_of_a_consumer(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q"):
        (header,) = [header_of(frame, Consume) for frame in node.heard if frame.type is FrameType.CONSUME]
    assert (header.window, header.window_bytes) == (1_000, 16_777_216)


async def test_of_a_bracketed_list_whose_first_host_is_down_the_second_is_taken(node: FakeNode) -> None:
    env, network = fake_env()
    network.nodes["myhost2", 61616] = node
    url = "(tcp://myhost:61616,tcp://myhost2:61616)?reconnectAttempts=5&load_balancing=first_element"
    async with connect(url, env=env, insecure=True) as client:
        await client.send("a", b"x")
    assert [(host, port) for _, host, port in network.dialed] == [("myhost", 61616), ("myhost2", 61616)]
    assert node.bodies == [b"x"]


async def test_five_attempts_are_five_and_then_the_client_gives_up(node: FakeNode) -> None:
    env, network = fake_env(node)
    with pytest.raises(ConnectionBrokenError):
        async with connect(f"{TCP}?reconnect_attempts=5", env=env):
            network.nodes.clear()
            node.cut()
            await trio.sleep_forever()
    assert len(network.dialed) == 1 + 5


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?reconnectAttempts=-1", "?reconnect_attempts=inf"])
async def test_attempts_without_end_find_a_node_that_was_away_for_hours(node: FakeNode, query: str) -> None:
    env, network = fake_env(node)
    async with connect(TCP + query, env=env) as client:
        network.nodes.clear()
        node.cut()
        await trio.sleep(6 * 3_600)
        assert len(network.dialed) > 10_000
        network.nodes["127.0.0.1", 1] = node
        await client.send("a", b"x")
    assert node.bodies == [b"x"]


async def test_a_connection_that_the_other_side_closes_is_noticed_at_that_instant(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        events = client.events()
        await trio.sleep(5)
        closed_at = trio.current_time()
        node.streams[-1].end()
        event = await anext(events)
        assert isinstance(event, Disconnected)
        assert event.at == pytest.approx(closed_at, abs=0.001)


async def test_an_application_may_fail_over_by_itself(node: FakeNode) -> None:
    other = FakeNode(name="m", node_id=b"m" * 16)
    env, network = fake_env(node, other)
    client = connect(TCP, env=env, reconnect_attempts=0)
    events = client.events()
    with pytest.raises(ConnectionBrokenError):
        async with client:
            await client.send("a", b"1")
            node.cut()
            await trio.sleep_forever()
    *_, last = [event async for event in events]
    assert isinstance(last, Disconnected)
    assert last.final
    async with connect("tcp://127.0.0.1:2", env=env, reconnect_attempts=0) as successor:
        await successor.send("a", b"2")
    assert [port for _, _, port in network.dialed] == [1, 2]
    assert (node.bodies, other.bodies) == ([b"1"], [b"2"])


async def test_of_two_sessions_only_the_one_that_was_lost_tells_of_it(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.session() as second:
        watched, quiet = second.events(), client.events()
        node.streams[-1].cut()
        await until_attached(second, 2)
        await until(lambda: second.statistics().resumed == 1)
        assert client.statistics().connected == 1
    assert [type(event).__name__ for event in [event async for event in watched]] == ["Disconnected", "Reattached"]
    assert [event async for event in quiet] == []


async def test_an_acknowledgement_waits_for_the_disk_only_if_it_is_asked_to(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        one, two = await consumer.receive_many(2)
        node.answers = False
        began = trio.current_time()
        await one.ack()
        assert trio.current_time() == began
        with trio.move_on_after(5) as scope:
            await two.ack(confirm=True)
        assert scope.cancelled_caught
        node.answers = True
        node.release()
