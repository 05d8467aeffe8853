"""Silence, timeouts, and the events that tell of it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from meshq.client import Connected, Disconnected, FailedOver, Reattached, connect
from meshq.errors import (
    CallTimeoutError,
    ConnectionBrokenError,
)
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until, until_attached

TCP = "tcp://127.0.0.1:1"


# -- silence and time


async def test_a_connection_that_falls_silent_is_given_up_after_the_ttl(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client:
        started = trio.current_time()
        node.streams[-1].silent = True
        await until_attached(client, 2)
        assert 5.9 < trio.current_time() - started < 6.2
        await client.send("a", b"x")
    assert client.statistics().resumed == 1


async def test_time_in_which_the_client_stood_still_is_not_silence_of_the_node(node: FakeNode) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client:
        for _ in range(3):
            await trio.sleep(1)
            clock.jump(100)
        await trio.sleep(1)
        assert client.statistics().connected == 1
        started = trio.current_time()
        node.streams[-1].silent = True
        await until_attached(client, 2)
        assert trio.current_time() - started < 6.2


async def test_a_connection_over_which_a_frame_comes_slowly_is_not_silent(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client, client.consumer("q") as consumer:
        stream, sent = node.streams[-1], bytearray()
        stream.arrive, arrive = sent.extend, stream.arrive  # type: ignore[method-assign]
        node.deliver("q", [b"x" * 60])
        for start in range(0, len(sent), 10):
            arrive(bytes(sent[start : start + 10]))
            await trio.sleep(4)
        assert len((await consumer.receive()).body) == 60
        assert trio.current_time() > 30 and client.statistics().connected == 1


async def test_the_ttl_of_the_node_counts_if_it_is_shorter(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.ttl_ms = 3_000
    async with connect(TCP, env=env) as client:
        started = trio.current_time()
        node.streams[-1].silent = True
        await until_attached(client, 2)
        assert 2.9 < trio.current_time() - started < 3.2


async def test_a_client_that_sends_nothing_says_that_it_is_there(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client:
        await trio.sleep(60)
        pings = node.heard_types().count("PING")
        assert 29 <= pings <= 31
        assert client.statistics().connected == 1


async def test_a_link_within_the_process_has_no_pings(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect("inproc://n", env=env, connection_ttl=6):
        await trio.sleep(600)
        assert "PING" not in node.heard_types()


async def test_a_node_that_takes_the_connection_and_says_nothing_is_given_up(node: FakeNode) -> None:
    env, network = fake_env(node)
    network.black_holes["127.0.0.1", 1] = None
    with pytest.raises(ConnectionBrokenError, match="did not answer"):
        async with connect(TCP, env=env, call_timeout=3):
            pytest.fail("nobody answers")
    assert trio.current_time() < 4
    network.black_holes.clear()
    node.mute = True
    with pytest.raises(ConnectionBrokenError, match="did not answer"):
        async with connect(TCP, env=env, call_timeout=3):
            pytest.fail("nobody answers")


async def test_a_call_that_is_not_answered_in_time_is_unknown_and_the_connection_goes_on(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, call_timeout=2) as client:
        node.answers = False
        started = trio.current_time()
        with pytest.raises(CallTimeoutError) as caught:
            await client.queue("a")
        assert trio.current_time() - started == pytest.approx(2)
        assert caught.value.outcome == "unknown"
        node.answers = True
        # The late answer is nobody's.
        node.release()
        await client.queue("a")
        assert client.statistics().connected == 1


async def test_a_send_that_is_not_confirmed_in_time_is_unknown_and_the_connection_goes_on(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, call_timeout=2) as client:
        node.confirms = False
        with pytest.raises(CallTimeoutError) as caught:
            await client.send("a", b"1")
        assert caught.value.outcome == "unknown"
        with pytest.raises(CallTimeoutError) as caught:
            await client.send_many("a", [b"2", b"3"])
        assert [error.outcome for error in caught.value.results if error] == ["unknown", "unknown"]
        node.confirms = True
        node.release()
        await client.send("a", b"4")
        assert client.statistics().unconfirmed == 0


async def test_what_finds_no_connection_in_time_is_not_done(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env, call_failover_timeout=5) as client:
        network.nodes.clear()
        node.cut()
        await until(lambda: client.statistics().state == "reconnecting")
        await trio.sleep(3)
        started = trio.current_time()
        for call in (lambda: client.send("a", b"x"), lambda: client.queue("a"), lambda: client.send_many("a", [b"y"])):
            with pytest.raises(CallTimeoutError) as caught:
                await call()
            assert caught.value.outcome == "not_done"
            assert trio.current_time() - started == pytest.approx(5)
            started = trio.current_time()
        network.nodes["127.0.0.1", 1] = node
        await client.send("a", b"z")
    # What was given up is never sent.
    assert node.bodies == [b"z"]


async def test_a_send_in_flight_waits_for_a_connection_only_so_long(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env, call_failover_timeout=5) as client, trio.open_nursery() as nursery:
        node.stores = False
        result = Result()
        nursery.start_soon(result.of, client.send, "a", b"x")
        await trio.sleep(20)
        assert not result.done
        network.nodes.clear()
        node.cut()
        await trio.sleep(4.9)
        assert not result.done
        await until(lambda: result.done)
        assert type(result.error) is CallTimeoutError
        assert result.error.outcome == "unknown"


# -- what a program can see of it


async def test_events_tell_what_happened_in_order(node: FakeNode) -> None:
    env, network = fake_env(node)
    client = connect(TCP, env=env, reconnect_attempts=2)
    events = client.events()
    with pytest.raises(ConnectionBrokenError):
        async with client:
            await trio.sleep(10)
            node.cut()
            await until_attached(client, 2)
            await trio.sleep(10)
            node.restart()
            await until_attached(client, 3)
            await trio.sleep(10)
            network.nodes.clear()
            node.cut()
            await trio.sleep_forever()
    seen = [event async for event in events]
    kinds = [Connected, Disconnected, Reattached, Disconnected, FailedOver, Disconnected, Disconnected]
    assert [type(event) for event in seen] == kinds
    assert isinstance(seen[4], FailedOver)
    assert seen[4].same_node
    assert [event.final for event in seen if isinstance(event, Disconnected)] == [False, False, False, True]
    assert all(event.peer == "127.0.0.1:1" for event in seen)


@pytest.mark.slow
async def test_events_that_nobody_reads_are_bounded(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        events = client.events()
        for connections in range(2, 202):
            node.cut()
            await until_attached(client, connections)
        assert events.missed == 2 * 200 - 256
    assert len([event async for event in events]) == 256


async def test_a_client_that_only_receives_still_says_that_it_is_there(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client, client.consumer("q"):
        for _ in range(60):
            node.deliver("q", [b"x"])
            await trio.sleep(1)
        assert node.heard_types().count("PING") >= 25


async def test_a_client_that_says_much_and_hears_nothing_asks(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, connection_ttl=6) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"x"] * 60)
        for message in await consumer.receive_many(60):
            await message.ack()
            await trio.sleep(1)
        assert 25 <= node.heard_types().count("PING") <= 31


async def test_a_send_whose_producer_is_not_opened_in_time_is_not_done(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, call_timeout=2) as client:
        node.answers = False
        with pytest.raises(CallTimeoutError) as caught:
            await client.send("a", b"1")
        assert caught.value.outcome == "not_done"
        node.answers = True
        node.release()
        await client.send("a", b"2")
    assert node.bodies == [b"2"]


async def test_the_log_has_a_line_for_each_change_and_says_repeats_once_a_minute(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="meshq")
    env, _ = fake_env(node)
    async with connect(TCP, env=env, client_id="canary-label") as client:
        await client.send("a", b"canary", properties={"canary": "canary"}, duplicate_id="canary")
        for connections in range(2, 12):
            await trio.sleep(5)
            node.cut()
            await until_attached(client, connections)
        await trio.sleep(20)
        node.cut()
        await until_attached(client, 12)
    lines = [(record.event, record.count) for record in caplog.records]  # type: ignore[attr-defined]
    assert lines == [
        ("client_connected", 1),
        ("client_disconnected", 1),
        ("client_reattached", 1),
        ("client_disconnected", 10),
        ("client_reattached", 10),
    ]
    assert "canary" not in caplog.text


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "never answered"])
async def test_a_send_without_credit_says_when_it_was_the_connection_that_was_lost(
    node: FakeNode, silent: bool
) -> None:
    env, network = fake_env(node)
    node.credit = 1
    async with connect(TCP, env=env, call_timeout=1, call_failover_timeout=3) as client:
        # The first one takes all the credit.
        await client.send("a", b"1")
        result = Result()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(result.of, client.send, "a", b"2")
            await trio.testing.wait_all_tasks_blocked()
            network.nodes.clear()
            if silent:
                network.black_holes["127.0.0.1", 1] = None
            node.cut()
        assert isinstance(result.error, CallTimeoutError) and result.error.outcome == "not_done"
        assert str(result.error) == "a send found no connection in time: the connection was lost"
        network.black_holes.clear()
        network.nodes["127.0.0.1", 1] = node
