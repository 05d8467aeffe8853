"""``with delivery`` and ``client.serve`` for asyncio and for threads: the same promises as on trio."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshq import (
    Message,
    QueueStatistics,
    SettingsError,
    StaleDeliveryError,
    UsageError,
    aio,
    blocking,
)
from tests.real.aio_kit import asyncio_test, clients, received, until
from tests.real.blocking_kit import our_threads

WAIT = 20


def counts(found: QueueStatistics) -> tuple[int, int, int, int]:
    """Ready, held, acknowledged and dead-lettered."""
    return found.ready, found.delivering, found.acknowledged, found.dead_lettered


# -- asyncio


@asyncio_test
async def test_a_task_settles_a_message_by_its_block(tmp_path: Path) -> None:
    async with clients(tmp_path) as both:
        for client in both:
            await client.send("q", Message.json({"n": 1}))
            async with client.consumer("q") as consumer:
                async with await received(consumer) as delivery:
                    assert delivery.json() == {"n": 1}
                await client.flush()
                assert counts(await client.queue("q"))[:2] == (0, 0)
                await client.send("q", b"2")
                delivery = await received(consumer)
                with pytest.raises(ZeroDivisionError):
                    async with delivery:
                        raise ZeroDivisionError
                delivery = await received(consumer)
                assert delivery.redelivered

                async def work(delivery: aio.Delivery) -> None:
                    async with delivery:
                        await asyncio.sleep(WAIT)

                task = asyncio.create_task(work(delivery))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with await received(consumer) as delivery:
                    assert delivery.delivery_count == 3
                    await delivery.reject()
            with pytest.raises(StaleDeliveryError):
                async with delivery.__class__(delivery._run, delivery._index, consumer):
                    delivery._run.settled = 0
            async with client.consumer("q", browse=True) as consumer:
                assert await consumer.receive() is None
        assert (await both[0].queue("q")).rejected == 2


@asyncio_test
async def test_a_cancelled_worker_of_asyncio_finishes_what_it_has_begun(tmp_path: Path) -> None:
    async with clients(tmp_path) as both:
        for client in both:
            await client.send_many("q", [b"%d" % number for number in range(10)])
            begun: list[bytes] = []
            done: list[bytes] = []
            go = asyncio.Event()

            async def handler(
                delivery: aio.Delivery, begun: list[bytes] = begun, done: list[bytes] = done, go: asyncio.Event = go
            ) -> None:
                begun.append(delivery.body)
                await go.wait()
                done.append(delivery.body)

            task = asyncio.create_task(client.serve("q", handler, concurrency=3))
            await until(lambda begun=begun: len(begun) == 3)
            task.cancel()
            await asyncio.sleep(0.05)
            assert (sorted(begun), done, task.done()) == ([b"0", b"1", b"2"], [], False)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert sorted(done) == [b"0", b"1", b"2"]
            await client.flush()
            assert counts(await client.queue("q"))[:2] == (7, 0)
            assert await client.purge_queue("q") == 7


@asyncio_test
async def test_a_second_cancellation_cancels_the_handlers_and_their_messages_come_again(tmp_path: Path) -> None:
    async with clients(tmp_path) as (client, _):
        await client.send("q", b"1")
        begun = asyncio.Event()

        async def handler(delivery: aio.Delivery) -> None:
            begun.set()
            await asyncio.sleep(WAIT)

        task = asyncio.create_task(client.serve("q", handler))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counts(await client.queue("q"))[:3] == (1, 0, 0)


@asyncio_test
async def test_a_handler_that_ends_with_a_cancellation_of_its_own_has_failed_and_the_worker_goes_on() -> None:
    async with aio.Broker("hq", data_dir=None) as broker, broker.client() as client:
        await client.send_many("q", [b"bad", b"good"])
        told: list[tuple[bytes, str, str]] = []
        done: list[bytes] = []

        async def handler(delivery: aio.Delivery) -> None:
            if delivery.body == b"bad" and not delivery.redelivered:
                task = asyncio.create_task(asyncio.sleep(WAIT))
                task.cancel()
                await task
            done.append(delivery.body)
            if len(done) == 2:
                client.stop_serving()

        def on_error(delivery: aio.Delivery, error: Exception) -> None:
            told.append((delivery.body, type(error).__name__, type(error.__cause__).__name__))

        await client.serve("q", handler, on_error=on_error)
        await client.flush()
        assert told == [(b"bad", "RuntimeError", "CancelledError")]
        assert sorted(done) == [b"bad", b"good"]
        assert counts(await client.queue("q"))[:3] == (0, 0, 2)


@asyncio_test
async def test_a_handler_of_asyncio_that_is_not_async_ends_the_worker() -> None:
    async with aio.Broker("hq", data_dir=None) as broker, broker.client() as client:
        await client.send("q", b"1")
        with pytest.raises(SettingsError, match="an async function of a delivery"):
            await asyncio.wait_for(client.serve("q", lambda delivery: None), WAIT)  # type: ignore[arg-type]
        assert counts(await client.queue("q"))[:3] == (1, 0, 0)
        async with client.consumer("q") as consumer:
            assert (await consumer.receive(timeout=WAIT)).delivery_count == 1  # type: ignore[union-attr]


# -- threads


@pytest.mark.usefixtures("no_thread_is_left")
class TestThreads:
    """Workers with threads; each test looks that none of these is left."""

    def test_a_thread_settles_a_message_by_its_block(self, tmp_path: Path) -> None:
        with blocking.Broker("hq", data_dir=tmp_path) as broker, broker.client() as client:
            client.send("q", Message.json([1, 2]))
            with client.consumer("q") as consumer:
                delivery = consumer.receive(timeout=WAIT)
                assert delivery is not None
                with pytest.raises(ZeroDivisionError), delivery:
                    raise ZeroDivisionError
                delivery = consumer.receive(timeout=WAIT)
                assert delivery is not None
                with pytest.raises(KeyboardInterrupt), delivery:
                    raise KeyboardInterrupt
                delivery = consumer.receive(timeout=WAIT)
                assert delivery is not None
                with delivery:
                    assert (delivery.delivery_count, delivery.json()) == (3, [1, 2])
                client.flush()
                assert counts(client.queue("q"))[:3] == (0, 0, 1)
            with client.consumer("q", ack="auto") as consumer:
                client.send("q", b"1")
                delivery = consumer.receive(timeout=WAIT)
                assert delivery is not None
                with pytest.raises(UsageError, match="nothing to settle"), delivery:
                    raise AssertionError("it was entered")

    def test_an_async_handler_is_refused_and_acknowledges_nothing(self, tmp_path: Path) -> None:
        with blocking.Broker("hq", data_dir=tmp_path) as broker, broker.client() as client:
            client.send("q", b"1")

            async def handler(delivery: blocking.Delivery) -> None:
                raise AssertionError("it is awaited by nobody")

            with pytest.raises(SettingsError, match="not async"):
                client.serve("q", handler)
            assert client.queue("q").redelivered == 0
            with pytest.raises(SettingsError, match="not async"):
                client.serve("q", lambda delivery: handler(delivery))
            client.flush()
            assert counts(client.queue("q"))[:3] == (1, 0, 0)
            with client.consumer("q") as consumer:
                assert consumer.receive(timeout=WAIT).delivery_count == 1  # type: ignore[union-attr]


@pytest.fixture
def no_thread_is_left() -> object:
    """Whatever a test does, its threads end with its blocks."""
    assert our_threads() == []
    yield
    assert our_threads() == []


SCRIPT = """
import sys, threading, time
from meshq.blocking import Broker

def handler(delivery):
    print("begun", flush=True)
    time.sleep(0.5)
    print("done", flush=True)

with Broker("hq", data_dir=sys.argv[1]) as broker, broker.client() as client:
    client.send_many("q", [b"1", b"2", b"3"])
    try:
        client.serve("q", handler)
    except KeyboardInterrupt:
        client.flush()
        found = client.queue("q")
        print("left", found.ready, found.delivering, found.acknowledged, flush=True)
"""


@pytest.mark.processes
def test_an_interrupted_worker_finishes_what_it_has_begun_before_the_interrupt_goes_on(tmp_path: Path) -> None:
    program = [sys.executable, "-c", SCRIPT, str(tmp_path / "hq")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(WAIT) == 0
    assert rest.splitlines() == ["done", "left 2 0 1"]
