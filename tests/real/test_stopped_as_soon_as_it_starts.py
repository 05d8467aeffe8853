"""What is stopped or closed before whoever has started it goes on, under asyncio and in threads, ends all the same."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from meshq import Broker, ClosedError, ConnectionBrokenError, UsageError, aio, blocking, connect
from meshq.aio import _loop_thread as aio_loop
from meshq.blocking._loop_thread import ThreadLoop
from meshq.portal import PortalCompletion
from tests.real.aio_kit import asyncio_test, until
from tests.real.blocking_kit import our_threads
from tests.real.test_aio_life import URL

WAIT_S = 10


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when another thread has got there; nothing else runs in this one meanwhile."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@asyncio_test
async def test_a_broker_is_stopped_before_the_task_that_runs_it_has_heard_that_it_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, go_on = aio.Broker("hq", data_dir=None), asyncio.Event()
    wait = aio_loop.TaskLoop.wait

    async def late(loop: aio_loop.TaskLoop, completion: PortalCompletion, cancel: Callable[[], object]) -> Any:
        value = await wait(loop, completion, cancel)
        if asyncio.current_task() is running:
            await go_on.wait()
        return value

    monkeypatch.setattr(aio_loop.TaskLoop, "wait", late)
    with pytest.raises(UsageError, match="has not started"):
        await broker.stop()
    running = asyncio.create_task(broker.run())
    await until(lambda: broker.state == "active")
    assert broker.statistics().queues == 0
    assert broker.explain_route("q").address == "q"
    async with asyncio.timeout(WAIT_S):
        await broker.stop()
        stopped = broker.state
        go_on.set()
        await running
    assert stopped == "stopped"
    await broker.stop()


BEFORE = "closed before it was open"


@asyncio_test
async def test_a_client_that_was_never_open_is_closed_in_silence_and_stays_so() -> None:
    async with aio.Broker("hq", data_dir=None) as broker:
        for client in (aio.connect(URL), broker.client()):
            await client.close()
            await client.close()
            with pytest.raises(ClosedError, match="the client is closed") as calling:
                await client.queues()
            with pytest.raises(ClosedError, match=BEFORE) as entering:
                await client.__aenter__()
            assert calling.value.outcome == entering.value.outcome == "not_done"
    with pytest.raises(ConnectionBrokenError, match="has stopped") as caught:
        await broker.client().__aenter__()
    assert caught.value.outcome == "not_done"


def test_a_client_that_was_never_open_is_closed_in_silence_and_stays_so_for_threads_and_for_trio() -> None:
    with blocking.Broker("hq", data_dir=None) as broker:
        for client in (blocking.connect(URL), broker.client()):
            client.close()
            client.close()
            with pytest.raises(ClosedError, match="the client is closed") as calling:
                client.queues()
            with pytest.raises(ClosedError, match=BEFORE) as entering:
                client.__enter__()
            assert calling.value.outcome == entering.value.outcome == "not_done"
    with pytest.raises(ConnectionBrokenError, match="has stopped") as caught:
        broker.client().__enter__()
    assert caught.value.outcome == "not_done"
    assert our_threads() == []

    async def main() -> None:
        async with Broker("hq", data_dir=None) as broker:
            for client in (connect(URL), broker.client()):
                await client.close()
                await client.close()
                with pytest.raises(ClosedError, match="the client is closed") as calling:
                    await client.queues()
                with pytest.raises(ClosedError, match=BEFORE) as entering:
                    await client.__aenter__()
                assert calling.value.outcome == entering.value.outcome == "not_done"
        with pytest.raises(ConnectionBrokenError, match="stopped") as caught:
            await broker.client().__aenter__()
        assert caught.value.outcome == "not_done"

    trio.run(main)


@asyncio_test
async def test_a_client_is_closed_while_a_task_connects_it() -> None:
    client = aio.connect(URL, initial_connect_attempts=math.inf)
    entering = asyncio.create_task(client.__aenter__())
    while client.statistics().state == "new":  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    async with asyncio.timeout(WAIT_S):
        await client.close()
        with pytest.raises(ClosedError, match="before it was open"):
            await entering
    await client.close()


class Late:
    """Has the thread that enters a block wait, once it is entered, until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.thread: threading.Thread | None = None
        self._wait = ThreadLoop.wait
        monkeypatch.setattr(ThreadLoop, "wait", lambda loop, *arguments: self._late(loop, *arguments))

    def _late(self, loop: ThreadLoop, completion: PortalCompletion, cancel: Callable[[], object]) -> Any:
        value = self._wait(loop, completion, cancel)
        if threading.current_thread() is self.thread:
            assert self.go_on.wait(WAIT_S)
        return value

    def start(self, function: Callable[[], object]) -> threading.Thread:
        """Start the thread that is late."""
        self.thread = threading.Thread(target=function)
        self.thread.start()
        return self.thread


def test_a_broker_is_stopped_before_the_thread_that_runs_it_has_heard_that_it_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, broker = Late(monkeypatch), blocking.Broker("hq", data_dir=None)
    with pytest.raises(UsageError, match="has not started"):
        broker.stop()
    running = late.start(broker.run)
    wait_for(lambda: broker.state == "active")
    assert broker.statistics().queues == 0
    assert broker.explain_route("q").address == "q"
    stopping = threading.Thread(target=broker.stop)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert broker.state == "stopped"
    late.go_on.set()
    running.join(WAIT_S)
    assert not running.is_alive()
    broker.stop()
    assert our_threads() == []


def test_a_client_is_closed_while_a_thread_connects_it() -> None:
    client = blocking.connect(URL, initial_connect_attempts=math.inf)
    caught: list[BaseException] = []

    def enter() -> None:
        with pytest.raises(ClosedError, match="before it was open") as raised, client:
            raise AssertionError
        caught.append(raised.value)

    entering = threading.Thread(target=enter)
    entering.start()
    wait_for(lambda: client.statistics().state != "new")
    client.close()
    entering.join(WAIT_S)
    assert not entering.is_alive()
    assert len(caught) == 1
    client.close()
    assert our_threads() == []
