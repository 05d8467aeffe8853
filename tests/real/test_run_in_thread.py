"""A broker in a thread of its own under a trio program: it goes on while its host is busy, and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from meshq import (
    Broker,
    ConnectionBrokenError,
    MeshqError,
    NotActiveError,
    Notification,
    Security,
    SettingsError,
    UsageError,
    connect,
)
from meshq.blocking import connect as connect_blocking
from meshq.client import EventStream
from meshq.portal import PipeStream
from tests.real.blocking_kit import in_threads, our_threads


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its threads end with its blocks."""
    yield
    assert our_threads() == []


async def test_clients_of_the_host_need_no_socket_and_no_password(tmp_path: Path) -> None:
    broker = Broker("hq", data_dir=tmp_path / "hq", security=Security(users={"app": "secret"}))
    async with broker.run_in_thread() as hosted, hosted.client() as client, hosted.client() as other:
        assert (hosted.state, hosted.name, hosted.urls) == ("active", "hq", [])
        async with client.producer("q") as producer, other.consumer("q") as consumer:
            for number in range(3_000):
                await producer.send(b"%d" % number)
            found: list[bytes] = []
            while len(found) < 3_000:
                batch = await consumer.receive_many(500, timeout=10)
                assert batch
                found += [delivery.body for delivery in batch]
                await consumer.ack(*batch)
            await other.flush()
        assert found == [b"%d" % number for number in range(3_000)]
        assert (await client.queue("q")).acknowledged == 3_000
        assert hosted.statistics().connections == 2
        assert (hosted.durable, [step.name for step in hosted.explain_route("q").steps]) == (True, ["q"])
        with pytest.raises(SettingsError, match="properties="):
            hosted.explain_route("q", {"": 1})
        assert len(our_threads()) == 1
    assert hosted.state == "stopped"
    with pytest.raises(NotActiveError):
        hosted.statistics()
    with pytest.raises(NotActiveError):
        hosted.explain_route("q")


async def test_large_messages_both_ways_wait_for_room() -> None:
    async with Broker("hq", data_dir=None).run_in_thread() as hosted, hosted.client() as client:
        bodies = [bytes([number]) * 2**20 for number in range(20)]
        await client.send_many("q", bodies)
        async with client.consumer("q") as consumer:
            for body in bodies:
                delivery = await consumer.receive(timeout=10)
                assert delivery is not None
                assert delivery.body == body
                await delivery.ack()


async def test_a_busy_host_holds_up_nobody_else() -> None:
    broker = Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"])
    async with broker.run_in_thread() as hosted:

        def send() -> None:
            with connect_blocking(hosted.urls[0]) as client:
                client.send("q", b"x")

        # The host's loop stands still meanwhile.
        in_threads(send)
        time.sleep(0.3)  # noqa: ASYNC251
        assert hosted.statistics().loop_lag < 0.2
        async with connect(hosted.urls[0]) as client:
            assert (await client.queue("q")).ready == 1


async def test_a_broker_that_fails_cancels_the_body_and_raises_its_error(tmp_path: Path) -> None:
    broker = Broker("hq", data_dir=tmp_path / "hq")
    with pytest.raises(MeshqError, match="the disk is gone"):
        async with broker.run_in_thread() as hosted, hosted.client() as client:
            await client.send("q", b"x")
            node = broker._node
            assert node is not None
            hosted._loop.run_sync(lambda: node._journal_failed(MeshqError("the disk is gone")))
            await trio.sleep_forever()
    assert broker.state == "failed"


async def test_a_broker_that_can_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    async with Broker("hq", data_dir=tmp_path / "hq").run_in_thread():
        with pytest.raises(MeshqError):
            async with Broker("hq", data_dir=tmp_path / "hq").run_in_thread():
                raise AssertionError


async def test_what_the_body_raises_leaves_as_it_was_and_a_cancelled_one_gets_a_clean_stop(tmp_path: Path) -> None:
    broker = Broker("hq", data_dir=tmp_path / "hq")
    with pytest.raises(ValueError, match="mine"):
        async with broker.run_in_thread():
            raise ValueError("mine")
    broker = Broker("hq", data_dir=tmp_path / "hq")
    with trio.move_on_after(0.2):
        async with broker.run_in_thread(), trio.open_nursery():
            await trio.sleep_forever()
    assert broker.state == "stopped"


async def test_entering_may_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    for delay in range(10):
        broker = Broker("hq", data_dir=tmp_path / "hq")
        with trio.move_on_after(delay / 1_000):
            async with broker.run_in_thread() as hosted, hosted.client() as client:
                await client.send("q", b"x")
        # Nothing of it goes on: the next one can open the directory.  And nothing has failed.
        assert broker.state in ("new", "stopped")


async def test_stopping_twice_is_silent_and_using_it_twice_is_not() -> None:
    hosted = Broker("hq", data_dir=None).run_in_thread()
    with pytest.raises(UsageError):
        await hosted.stop()
    with pytest.raises(ConnectionBrokenError, match="is new"):
        async with hosted.client():
            raise AssertionError
    async with hosted:
        async with hosted.client() as client:
            await client.send("q", b"x")
        await hosted.stop()
        await hosted.stop()
    with pytest.raises(UsageError):
        async with hosted:
            raise AssertionError


async def test_whoever_watches_is_told_in_the_hosts_loop() -> None:
    broker = Broker("hq", data_dir=None)
    hosted = broker.run_in_thread()
    heard: dict[str, list[str]] = {"before": [], "early": [], "while": []}

    async def watch(name: str, events: EventStream[Notification]) -> None:
        heard[name] += [event.kind async for event in events]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, "before", broker.events())
        nursery.start_soon(watch, "early", hosted.events())
        await trio.testing.wait_all_tasks_blocked()
        async with hosted, hosted.client() as client:
            nursery.start_soon(watch, "while", hosted.events())
            for number in range(100):
                await client.create_queue(f"q{number}")
            with pytest.raises(UsageError, match="another thread"):
                await broker.stop()
        nursery.cancel_scope.deadline = trio.current_time() + 10
    assert not nursery.cancel_scope.cancelled_caught
    assert heard["before"] == heard["early"]
    assert heard["before"].count("queue_created") == heard["while"].count("queue_created") == 100
    assert heard["before"][-len(heard["while"]) :] == heard["while"] and heard["before"][0] == "broker_state_changed"
    assert [event async for event in hosted.events()] == []


async def test_a_client_learns_that_the_broker_has_stopped() -> None:
    async with Broker("hq", data_dir=None).run_in_thread() as hosted:
        with pytest.raises(ConnectionBrokenError):
            async with hosted.client():
                await hosted.stop()
                await trio.sleep_forever()


async def test_a_pipe_carries_bytes_in_order_and_says_how_many_wait() -> None:
    token = trio.lowlevel.current_trio_token()
    near, far = PipeStream.pair("there", token, token)
    data = bytes(range(256)) * 4_096
    assert near.send_nowait(data) == len(data) - 256 * 1024
    found = bytearray()

    async def read() -> None:
        while piece := await far.receive(100_000):
            found.extend(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await near.flush()
        assert near.send_nowait(b"end") == 0
        while not found.endswith(b"end"):
            await trio.lowlevel.checkpoint()
        near.close()
    assert bytes(found) == data + b"end"
    with pytest.raises(ConnectionBrokenError):
        far.send_nowait(b"x")
    with pytest.raises(ConnectionBrokenError):
        await near.receive(1)


async def test_whoever_waits_at_a_pipe_is_told_that_it_is_closed() -> None:
    token = trio.lowlevel.current_trio_token()
    for closed in (0, 1):
        ends = PipeStream.pair("there", token, token)
        ends[0].send_nowait(bytes(2**20))
        failed = []

        async def wait(ends: tuple[PipeStream, ...] = ends, failed: list[bool] = failed) -> None:
            try:
                await ends[0].flush()
            except ConnectionBrokenError:
                failed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            ends[closed].close()
        assert failed == [True]
