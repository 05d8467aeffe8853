"""Blocks and calls under asyncio that are cancelled, that fail, or whose loop goes away: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from meshq import ConnectionBrokenError, MeshqError, NotFoundError, SettingsError, UsageError
from meshq.aio import Broker, Client, Delivery, connect
from qa.broker_process import BrokerProcess
from tests.real.aio_kit import asyncio_test, clients, received, until
from tests.real.blocking_kit import our_threads

URL = "tcp://127.0.0.1:1"


@asyncio_test
async def test_a_cancelled_receive_loses_no_message() -> None:
    async with clients(None) as (far, near), far.consumer("q") as consumer:
        cancelled = 0
        for number in range(100):
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            if number % 2:
                # At about the moment at which the message arrives.
                far._loop.call_soon(waiting.get_loop().call_soon_threadsafe, waiting.cancel)
            else:
                waiting.cancel()
            await near.send("q", b"%d" % number)
            (got,) = await asyncio.gather(waiting, return_exceptions=True)
            cancelled += isinstance(got, asyncio.CancelledError)
            delivery = await received(consumer) if isinstance(got, asyncio.CancelledError) else got
            assert isinstance(delivery, Delivery)
            assert delivery.body == b"%d" % number
            await delivery.ack()
        assert cancelled >= 50


@asyncio_test
async def test_a_call_that_is_cancelled_or_too_late_has_ended_there_when_it_ends_here() -> None:
    async with clients(None) as (far, near):
        await far.create_queue("service")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await far.request("service", b"nobody", timeout=60)
        assert far.statistics().requests == 0
        task = asyncio.create_task(far.request("service", b"nobody", timeout=60))
        await until(lambda: far.statistics().requests == 1)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert far.statistics().requests == 0
        assert (await near.queue("service")).ready == 2


@asyncio_test
async def test_a_cancelled_send_waits_for_no_room() -> None:
    async with clients(None) as (far, _), far.producer("q", window=1) as producer:
        for _ in range(20):
            tasks = [asyncio.create_task(producer.send(b"x")) for _ in range(5)]
            await asyncio.sleep(0)
            for task in tasks[1:]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert done[0] is None
        await producer.flush()
        assert producer.statistics().sent == (await far.queue("q")).added


@asyncio_test
async def test_a_cancelled_body_leaves_its_blocks_and_waits_for_no_confirm(tmp_path: Path) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with clients(tmp_path) as (far, _), far.producer("q") as producer, far.consumer("other") as consumer:
            await producer.send(b"x")
            entered.set()
            await consumer.receive()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


@asyncio_test
async def test_entering_may_be_cancelled_at_any_moment() -> None:
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        for delay in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay / 2_000), connect(broker.urls[0]) as client:
                    await client.send("q", b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), connect(URL, initial_connect_attempts=10**6):
                raise AssertionError
        assert len(our_threads()) == 1


@asyncio_test
async def test_a_refused_connection_leaves_nothing_behind() -> None:
    with pytest.raises(ConnectionBrokenError):
        async with connect(URL):
            raise AssertionError


@asyncio_test
async def test_an_error_of_the_body_leaves_the_blocks_as_it_was() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised:
        async with clients(None) as (far, near), far.producer("q") as producer, near.consumer("q"):
            await producer.send(b"x")
            raise error
    assert raised.value is error


@pytest.fixture
def process(tmp_path: Path) -> Any:
    """A broker in a process of its own, and its URL."""
    broker = BrokerProcess(str(tmp_path / "real"))
    yield broker, broker.next_report()
    broker.process.kill()
    broker.close()


async def wait_in_body(client: Client) -> None:
    """Nothing of ours: the body has to be cancelled."""
    await asyncio.get_running_loop().create_future()


async def wait_in_consumer(client: Client) -> None:
    """A block in a block, and a call."""
    async with client.consumer("q") as consumer, client.producer("q"):
        await consumer.receive()


async def wait_in_group(client: Client) -> None:
    """A task of a group that waits."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1_000))


@pytest.mark.parametrize("body", [wait_in_body, wait_in_consumer, wait_in_group])
@asyncio_test
async def test_a_body_is_cancelled_when_the_connection_is_lost_for_good_and_the_block_says_why(
    process: tuple[BrokerProcess, str], body: Callable[[Client], Coroutine[Any, Any, None]]
) -> None:
    broker, url = process
    with pytest.raises(ConnectionBrokenError):
        async with connect(url, reconnect_attempts=0) as client:
            broker.process.kill()
            await body(client)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    # Nothing of that cancellation is left to strike later.
    await asyncio.sleep(0.01)


@asyncio_test
async def test_an_error_of_a_body_that_is_cancelled_for_a_failure_goes_along(
    process: tuple[BrokerProcess, str],
) -> None:
    broker, url = process
    with pytest.raises(ConnectionBrokenError) as raised:
        async with connect(url, reconnect_attempts=0):
            broker.process.kill()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise ValueError("mine") from None
    assert isinstance(raised.value.__context__, ValueError)


@asyncio_test
async def test_a_consumer_whose_queue_is_deleted_cancels_its_own_body_only() -> None:
    async with clients(None) as (far, near):
        await far.create_queue("q")
        with pytest.raises(NotFoundError):
            async with far.consumer("q"):
                await near.delete_queue("q")
                await asyncio.get_running_loop().create_future()
        await far.send("r", b"x")


@asyncio_test
async def test_a_cancellation_from_outside_goes_before_a_failure(process: tuple[BrokerProcess, str]) -> None:
    broker, url = process
    entered = asyncio.Event()

    async def work() -> None:
        async with connect(url, reconnect_attempts=0):
            entered.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    broker.process.kill()
    with pytest.raises((asyncio.CancelledError, ConnectionBrokenError)) as raised:
        await task
    assert raised.type is asyncio.CancelledError


@asyncio_test
async def test_a_producer_that_loses_its_broker_for_good_says_what_became_of_each(
    process: tuple[BrokerProcess, str],
) -> None:
    broker, url = process
    sent = 0
    with pytest.raises(ConnectionBrokenError) as raised:
        async with connect(url, reconnect_attempts=0) as client, client.producer("q", window=300) as producer:
            await producer.send(b"x")
            await producer.flush()
            broker.process.kill()
            while True:
                await producer.send(b"x")
                sent += 1
    results = raised.value.results
    assert len(results) == sent
    assert all(error is not None and error.outcome in ("unknown", "not_done") for error in results)


@pytest.mark.parametrize("then", ["send", "flush", "close", "leave"])
@asyncio_test
async def test_what_has_failed_is_told_even_if_whoever_asked_was_cancelled_just_then(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report() -> None:
        raise MeshqError("failed", results=[None])

    async with clients(None) as (far, _):
        with pytest.raises(MeshqError, match="failed") as raised:
            async with far.producer("q") as producer:
                monkeypatch.setattr(producer._feeder, "report", report)
                producer._failing = True
                task = asyncio.create_task(producer.send(b"x"))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                monkeypatch.undo()
                if then == "send":
                    await producer.send(b"x")
                elif then != "leave":
                    await getattr(producer, then)()
        assert raised.value.results == (None,)


@asyncio_test
async def test_a_broker_that_fails_cancels_the_body_and_raises_its_error(tmp_path: Path) -> None:
    broker = Broker("hq", data_dir=tmp_path / "hq")
    with pytest.raises(MeshqError, match="the disk is gone"):
        async with broker, broker.client() as client:
            await client.send("q", b"x")
            node = broker._inner._node
            assert node is not None
            broker._loop.run_sync(lambda: node._journal_failed(MeshqError("the disk is gone")))
            await asyncio.get_running_loop().create_future()
    assert broker.state == "failed"


@asyncio_test
async def test_an_iterator_of_events_that_nobody_holds_is_forgotten() -> None:
    async with Broker("hq", data_dir=None) as broker, broker.client() as client:
        kept = broker.events()
        dropped = [events() for events in (broker.events, client.events) for _ in range(10)]
        del dropped
        await client.create_queue("q")
        assert len(broker._loop._end_callbacks) == len(broker._inner._event_bus._watchers) == 1
    assert "queue_created" in [event.kind async for event in kept]


def test_a_loop_that_throws_its_tasks_away_leaves_no_thread_behind() -> None:
    loop = asyncio.new_event_loop()

    async def work(entered: asyncio.Event) -> None:
        async with clients(None) as (far, _), far.consumer("q") as consumer:
            entered.set()
            await consumer.receive()

    async def begin() -> asyncio.Task[None]:
        entered = asyncio.Event()
        task = asyncio.create_task(work(entered))
        await entered.wait()
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    coroutine.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    deadline = time.monotonic() + 10
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert our_threads() == []


def test_run_cancels_what_is_left_and_everything_ends() -> None:
    async def work() -> None:
        async with clients(None) as (far, _), far.consumer("q") as consumer:
            await consumer.receive()

    async def main() -> None:
        asyncio.get_running_loop().set_debug(True)
        task = asyncio.create_task(work())
        await until(lambda: len(our_threads()) == 2)
        assert not task.done()

    asyncio.run(main())
    assert our_threads() == []


def test_two_loops_in_two_threads_share_a_broker() -> None:
    found: list[int] = []

    async def main() -> None:
        async with Broker("hq", data_dir=None) as broker, broker.client() as mine:

            async def theirs() -> None:
                async with broker.client() as client:
                    for _ in range(100):
                        await client.send("q", b"x")

            thread = threading.Thread(target=lambda: asyncio.run(theirs()))
            thread.start()
            async with mine.consumer("q") as consumer:
                for _ in range(100):
                    await (await received(consumer)).ack()
            await asyncio.to_thread(thread.join)
            found.append((await mine.queue("q")).added)

    asyncio.run(main())
    assert found == [100]
    assert our_threads() == []


@pytest.mark.parametrize("make", [lambda: connect(URL), lambda: Broker("hq", data_dir=None)])
async def test_a_trio_task_is_sent_to_meshq_itself(make: Callable[[], Broker | Client]) -> None:
    refused = make()
    with pytest.raises(UsageError, match=r"called from a trio task, .* use meshq itself") as caught:
        async with refused:
            raise AssertionError
    assert caught.value.outcome == "not_done"
    # Neither has the task's loop stopped, nor is there another one that serves what was refused.
    await trio.lowlevel.checkpoint()
    assert our_threads() == []


@asyncio_test
async def test_a_loop_of_calls_that_find_everything_here_lets_others_run() -> None:
    async with clients(None) as (far, _), far.producer("q") as producer, far.consumer("q", window=4_000) as consumer:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        before = turns
        for _ in range(640):
            await producer.send(b"x")
        assert turns - before >= 9
        await producer.flush()
        await until(lambda: consumer.statistics().ready == 640)
        before = turns
        for _ in range(640):
            await (await received(consumer)).ack()
        assert turns - before >= 18
        task.cancel()
        await asyncio.wait([task])


@asyncio_test
async def test_a_broker_runs_until_it_is_stopped() -> None:
    broker = Broker("hq", data_dir=None)
    with pytest.raises(UsageError):
        await broker.stop()
    running = asyncio.create_task(broker.run())
    await until(lambda: broker.state == "active")
    await broker.stop()
    await running
    assert broker.state == "stopped"


@asyncio_test
async def test_a_url_in_process_is_refused_with_what_there_is_instead() -> None:
    with pytest.raises(SettingsError, match="inproc"):
        connect("inproc://hq")
