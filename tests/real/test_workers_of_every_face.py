"""``with delivery`` and ``client.serve`` for asyncio and for threads: the same promises as on trio."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from meshq import (
    AddressSettings,
    Message,
    QueueStatistics,
    SettingsError,
    StaleDeliveryError,
    UsageError,
    aio,
    blocking,
)
from tests.real.aio_kit import asyncio_test, clients, received, until
from tests.real.test_blocking_client import our_threads

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
async def test_a_warning_of_asyncio_says_that_the_message_was_settled_before(tmp_path: Path) -> None:
    records: list[logging.LogRecord] = []
    log = logging.getLogger("meshq.client")
    log.addFilter(records.append)  # type: ignore[arg-type]
    try:
        async with clients(tmp_path) as (client, _):
            await client.send("q", b"x")

            async def handler(delivery: aio.Delivery) -> None:
                client.stop_serving()
                await delivery.ack()
                raise ValueError

            await client.serve("q", handler)
            (record,) = [one for one in records if getattr(one, "event", "") == "handler_failed"]
            assert record.getMessage().endswith("; the handler had settled the message before")
    finally:
        log.removeFilter(records.append)  # type: ignore[arg-type]


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
async def test_a_worker_of_asyncio_goes_on_after_a_handler_has_failed() -> None:
    settings = {"q": AddressSettings(max_delivery_attempts=2, dead_letter_address="dead")}
    async with aio.Broker("hq", data_dir=None, address_settings=settings) as broker, broker.client() as client:
        await client.send_many("q", [b"bad", b"good"])
        seen: list[bytes] = []
        told: list[tuple[bytes, str]] = []

        async def handler(delivery: aio.Delivery) -> None:
            seen.append(delivery.body)
            if delivery.body == b"bad":
                raise ValueError

        def on_error(delivery: aio.Delivery, error: Exception) -> None:
            told.append((delivery.body, type(error).__name__))

        task = asyncio.create_task(client.serve("q", handler, on_error=on_error))
        await until(lambda: len(seen) == 3)
        await client.flush()
        assert sorted(seen) == [b"bad", b"bad", b"good"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == [(b"bad", "ValueError")] * 2
        assert counts(await client.queue("q")) == (0, 0, 1, 1)

        def ends(delivery: aio.Delivery, error: Exception) -> None:
            raise KeyError("enough")

        await client.send("q", b"bad")
        with pytest.raises(KeyError, match="enough"):
            await client.serve("q", handler, on_error=ends)


@asyncio_test
async def test_a_stopped_worker_of_asyncio_returns_when_what_it_has_begun_is_finished() -> None:
    async with aio.Broker("hq", data_dir=None) as broker, broker.client() as client:
        await client.send_many("q", [b"%d" % number for number in range(5)])
        begun: list[bytes] = []
        go = asyncio.Event()

        async def handler(delivery: aio.Delivery) -> None:
            begun.append(delivery.body)
            await go.wait()

        task = asyncio.create_task(client.serve("q", handler, concurrency=2))
        await until(lambda: len(begun) == 2)
        client.stop_serving()
        go.set()
        await task
        await client.serve("q", handler)
        await client.flush()
        assert counts(await client.queue("q"))[:3] == (3, 0, 2)


@asyncio_test
async def test_a_worker_of_asyncio_returns_when_another_task_closes_its_client() -> None:
    async with aio.Broker("hq", data_dir=None) as broker, broker.client() as client:

        async def handler(delivery: aio.Delivery) -> None:
            raise AssertionError("there is no message")

        task = asyncio.create_task(client.serve("q", handler, concurrency=2))
        await asyncio.sleep(0.05)
        await client.close()
        await task


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

    def test_a_worker_that_is_stopped_finishes_what_it_has_begun(self, tmp_path: Path) -> None:
        with blocking.Broker("hq", data_dir=tmp_path) as broker, broker.client() as client:
            client.send_many("q", [b"%d" % number for number in range(10)])
            begun = threading.Semaphore(0)
            go = threading.Event()
            done: list[bytes] = []

            def handler(delivery: blocking.Delivery) -> None:
                begun.release()
                assert go.wait(WAIT)
                done.append(delivery.body)

            worker = threading.Thread(target=client.serve, args=("q", handler), kwargs={"concurrency": 3})
            worker.start()
            for _ in range(3):
                assert begun.acquire(timeout=WAIT)
            more = begun.acquire(timeout=0.2)
            client.stop_serving()
            assert worker.is_alive() and not done
            go.set()
            worker.join(WAIT)
            assert not worker.is_alive() and not more
            assert sorted(done) == [b"0", b"1", b"2"]
            client.serve("q", handler)
            client.flush()
            assert counts(client.queue("q"))[:3] == (7, 0, 3)

    def test_a_worker_with_threads_goes_on_after_a_handler_has_failed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = {"q": AddressSettings(max_delivery_attempts=2, dead_letter_address="dead")}
        with (
            caplog.at_level(logging.WARNING, "meshq.client"),
            blocking.Broker("hq", data_dir=tmp_path, address_settings=settings) as broker,
            broker.client() as client,
        ):
            client.send_many("q", [b"bad", b"good", b"last"])

            def handler(delivery: blocking.Delivery) -> None:
                if delivery.body == b"bad":
                    raise ValueError("secret")
                if delivery.body == b"last":
                    client.stop_serving()

            client.serve("q", handler)
            client.flush()
            found = client.queue("q")
            assert (found.acknowledged, found.ready + found.dead_lettered) == (2, 1)
            assert [record.event for record in caplog.records] == ["handler_failed"]  # type: ignore[attr-defined]
            assert "ValueError in handler" in caplog.text and "secret" not in caplog.text

            def ends(delivery: blocking.Delivery, error: Exception) -> None:
                raise KeyError("enough")

            client.send("q", b"bad")
            with client.session() as another, pytest.raises(KeyError, match="enough"):
                another.serve("q", handler, on_error=ends)

    def test_a_warning_says_that_the_message_was_settled_before(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            caplog.at_level(logging.WARNING, "meshq.client"),
            blocking.Broker("hq", data_dir=tmp_path) as broker,
            broker.client() as client,
        ):
            client.send("q", b"x")

            def handler(delivery: blocking.Delivery) -> None:
                client.stop_serving()
                delivery.ack()
                raise ValueError

            client.serve("q", handler)
            client.flush()
            assert client.queue("q").acknowledged == 1
            (record,) = caplog.records
            assert record.getMessage().endswith("; the handler had settled the message before")

    def test_a_worker_with_threads_returns_when_another_thread_closes_its_client(self, tmp_path: Path) -> None:
        with blocking.Broker("hq", data_dir=tmp_path) as broker, broker.client() as client:
            begun = threading.Event()
            client.send("q", b"1")
            worker = threading.Thread(target=client.serve, args=("q", lambda delivery: begun.set()))
            worker.start()
            assert begun.wait(WAIT)
            client.close()
            worker.join(WAIT)
            assert not worker.is_alive()

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

    def test_wrong_settings_of_a_worker_are_refused_before_it_begins(self, tmp_path: Path) -> None:
        with blocking.Broker("hq", data_dir=tmp_path) as broker, broker.client() as client:
            for wrong in ({"concurrency": 0}, {"window": 0}, {"on_error": 1}):
                with pytest.raises(SettingsError):
                    client.serve("q", print, **wrong)  # type: ignore[arg-type]


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
