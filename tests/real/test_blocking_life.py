"""What starts and ends with a blocking block, and what a thread is told that calls at the wrong time or place."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

import meshq
from meshq import (
    ClosedError,
    ConnectionBrokenError,
    JournalBrokenError,
    SettingsError,
    UsageError,
)
from meshq.blocking import Broker, ClientFactory, Consumer, Delivery, connect
from meshq.blocking._loop_thread import ThreadLoop
from meshq.env import FaultInjectingDisk, real_env
from tests.real.blocking_kit import clients, in_threads, our_threads


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its threads end with its blocks."""
    assert our_threads() == []
    yield
    assert our_threads() == []


def interrupt_soon(seconds: float = 0.2) -> threading.Timer:
    """Ctrl-C, while this thread waits."""
    timer = threading.Timer(seconds, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    timer.start()
    return timer


# -- threads


def test_a_thread_lives_as_long_as_the_block_that_owns_it() -> None:
    broker = Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"])
    assert our_threads() == []
    with broker:
        assert our_threads() == ["meshq: the broker 'hq'"]
        with broker.client() as near, near.session():
            assert our_threads() == ["meshq: the broker 'hq'"]
        with connect(broker.urls[0]) as far:
            assert our_threads() == ["meshq: the broker 'hq'", "meshq: the client"]
            with far.session():
                assert len(our_threads()) == 3
        assert our_threads() == ["meshq: the broker 'hq'"]
    assert our_threads() == []
    assert broker.state == "stopped"


def test_what_the_body_raises_leaves_the_block_as_it_was() -> None:
    error = ValueError("the body's")
    with (
        pytest.raises(ValueError) as raised,
        clients(None) as (far, near),
        near.consumer("q"),
        near.producer("q") as producer,
        far.producer("q") as other,
    ):
        producer.send(b"x")
        other.send(b"y")
        raise error
    assert raised.value is error
    assert error.__context__ is None


def test_a_refused_connection_is_one_error_with_both_tracebacks() -> None:
    client = connect("tcp://127.0.0.1:1")
    with pytest.raises(ConnectionBrokenError) as raised, client:
        pass
    assert raised.value.outcome == "not_done"
    text = "".join(traceback.format_exception(raised.value))
    assert __file__ in text and "_connection.py" in text
    assert not isinstance(raised.value, BaseExceptionGroup)
    assert our_threads() == []
    with pytest.raises(UsageError, match="used before"), client:
        pass


def until_the_end(consumer: Consumer) -> None:
    """Wait for a message until there is nobody to wait for."""
    with pytest.raises((ConnectionBrokenError, ClosedError)):
        consumer.receive()


def test_blocks_that_are_left_in_another_order_end_all_the_same() -> None:
    broker = Broker("hq", data_dir=None, stop_timeout=1)
    broker.__enter__()
    client = broker.client()
    client.__enter__()
    client.create_queue("q")
    consumer = client.consumer("q")
    consumer.__enter__()
    waiting = threading.Thread(target=until_the_end, args=(consumer,))
    waiting.start()
    broker.__exit__(None, None, None)
    waiting.join(10)
    assert not waiting.is_alive()
    assert our_threads() == []
    for block in (consumer, client):
        try:
            block.__exit__(None, None, None)
        except ConnectionBrokenError as error:
            assert error.outcome
    with pytest.raises(ClosedError):
        client.queues()


def test_a_broker_runs_in_a_thread_until_another_one_stops_it() -> None:
    broker = Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"])
    with pytest.raises(UsageError, match="has not started"):
        broker.stop()

    def use() -> None:
        while not broker.urls:
            time.sleep(0.01)
        with connect(broker.urls[0]) as client:
            client.send("q", b"x")
        broker.stop()
        broker.stop()

    in_threads(broker.run, use)
    assert broker.state == "stopped"
    with pytest.raises(UsageError, match="used before"):
        broker.run()


def test_an_iterator_of_events_that_nobody_holds_is_forgotten() -> None:
    with Broker("hq", data_dir=None) as broker, broker.client() as client:
        kept = broker.events()
        dropped = [events() for events in (broker.events, client.events) for _ in range(10)]
        del dropped
        client.create_queue("q")
        assert len(broker._loop._end_callbacks) == len(broker._inner._event_bus._watchers) == 1
    assert "queue_created" in [event.kind for event in kept]


def test_a_broker_whose_disk_fails_raises_that_from_its_block(tmp_path: Path) -> None:
    env = real_env()
    env = attrs.evolve(env, disk=FaultInjectingDisk(env.disk, at={"sync": 25}, action="eio"))
    with pytest.raises(JournalBrokenError) as raised, Broker("hq", data_dir=tmp_path / "hq", env=env) as broker:
        with pytest.raises(meshq.MeshqError), broker.client() as client:
            for _ in range(200):
                client.send("q", b"x")
        while broker.state != "failed":
            time.sleep(0.01)
        raise ValueError("the body's")
    assert isinstance(raised.value.__context__, ValueError)
    assert our_threads() == []


def test_a_broker_that_fails_ends_its_run(tmp_path: Path) -> None:
    env = real_env()
    env = attrs.evolve(env, disk=FaultInjectingDisk(env.disk, at={"sync": 25}, action="eio"))
    broker = Broker("hq", data_dir=tmp_path / "hq", env=env, acceptors=["tcp://127.0.0.1:0"])

    def use() -> None:
        while not broker.urls:
            time.sleep(0.01)
        with pytest.raises(meshq.MeshqError), connect(broker.urls[0], reconnect_attempts=0) as client:
            for _ in range(200):
                client.send("q", b"x")

    def run() -> None:
        with pytest.raises(JournalBrokenError):
            broker.run()

    in_threads(run, use)


# -- interrupts


def test_an_interrupted_receive_loses_no_message() -> None:
    with clients(None) as (far, near), far.consumer("q") as consumer:
        timer = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive()
        timer.join()
        near.send("q", b"1")
        delivery = consumer.receive(timeout=10)
        assert delivery is not None and not delivery.redelivered
        delivery.ack(confirm=True)


def test_an_interrupted_send_is_cancelled_and_the_block_ends() -> None:
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0])
        with pytest.raises(KeyboardInterrupt), client:
            client.create_queue("q")
            broker.stop()
            timer = interrupt_soon()
            began = time.monotonic()
            try:
                client.send("q", b"x")
            finally:
                timer.join()
                assert time.monotonic() - began < 5
    assert our_threads() == []


def test_an_interrupted_producer_has_not_taken_its_message() -> None:
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0])
        sent, main = 0, threading.get_ident()

        def interrupt_the_last() -> None:
            deadline = time.monotonic() + 30
            while producer.statistics().sent < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            # It waits for the window, or will in a moment.
            time.sleep(0.3)
            signal.pthread_kill(main, signal.SIGINT)

        with pytest.raises(KeyboardInterrupt), client, client.producer("q", window=3) as producer:
            producer.send(b"0")
            producer.flush()
            broker.stop()
            timer = threading.Thread(target=interrupt_the_last)
            timer.start()
            try:
                for _ in range(4):
                    producer.send(b"x")
            finally:
                timer.join()
                sent = producer.statistics().sent
        assert sent == 4


def test_an_interrupted_connect_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        timer = interrupt_soon()
        with pytest.raises(KeyboardInterrupt), connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}"):
            pass
        timer.join()
    assert our_threads() == []


def test_an_interrupt_in_the_body_goes_before_the_end_of_the_client() -> None:
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0], reconnect_attempts=0)
        with pytest.raises(KeyboardInterrupt), client:
            broker.stop()
            with pytest.raises(ConnectionBrokenError):
                while True:
                    client.send("q", b"x")
            raise KeyboardInterrupt


# -- misuse


def test_a_trio_task_is_told_to_use_the_trio_api() -> None:
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker, broker.client() as client:

        async def main() -> None:
            for wrong in (client.queues, connect(broker.urls[0]).__enter__, Broker("b", data_dir=None).__enter__):
                with pytest.raises(UsageError, match="trio task"):
                    wrong()
            assert await trio.to_thread.run_sync(client.queues) == []

        trio.run(main)


def test_a_call_from_the_loops_own_thread_is_refused() -> None:
    with clients(None) as (far, _):
        said: list[str] = []

        async def misuse() -> None:
            try:
                far.queues()
            except UsageError as error:
                said.append(str(error))

        far._loop.call(misuse)
        assert said == ["the client was called from its own thread, which it would wait for"]


def test_a_thread_that_starts_after_the_end_is_told_that_the_client_is_closed() -> None:
    with clients(None) as (far, _):
        pass
    said: list[type[BaseException]] = []

    def call() -> None:
        # The system gives such a thread the number of the one that has ended.
        with pytest.raises(ClosedError) as caught:
            far.queues()
        said.append(caught.type)

    in_threads(call)
    assert said == [ClosedError]


def test_a_broker_in_another_thread_is_not_reached_by_calls() -> None:
    with pytest.raises(SettingsError, match="inproc://hq"):
        ClientFactory("inproc://hq")
    with Broker("hq", data_dir=None):

        async def main() -> None:
            async with meshq.connect("inproc://hq"):
                pass

        with pytest.raises(UsageError, match="runs in another thread"):
            trio.run(main)


@pytest.mark.processes
def test_a_forked_child_is_told_that_its_parent_has_the_connection() -> None:
    code = """
    import os, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    from meshq import UsageError
    from meshq.blocking import Broker, connect
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        with connect(broker.urls[0]) as client, client.producer("q") as producer, client.consumer("q") as consumer:
            calls = [client.queues, lambda: producer.send(b"x"), producer.flush, consumer.receive,
                     lambda: client.__exit__(None, None, None), lambda: broker.__exit__(None, None, None)]
            child = os.fork()
            if not child:
                said = 0
                for call in calls:
                    try:
                        call()
                    except UsageError as error:
                        said += "belongs to the parent" in str(error)
                with Broker("its own", data_dir=None) as other, other.client() as own:
                    own.send("q", b"x")
                os._exit(said)
            _, status = os.waitpid(child, 0)
            client.send("q", b"x")
    print(os.waitstatus_to_exitcode(status))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("6\n", "")


def test_a_loop_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        client = connect(broker.urls[0])
        with pytest.raises(ClosedError), client:
            consumer = client.consumer("q").__enter__()
            producer = client.producer("q").__enter__()

            def receive() -> None:
                with pytest.raises(ClosedError) as raised:
                    consumer.receive()
                said.append(raised.type)

            def crash() -> None:
                raise RuntimeError("a defect")

            def crash_soon() -> None:
                time.sleep(0.2)
                client._loop.call_soon(crash)

            in_threads(receive, crash_soon)
            with pytest.raises(ClosedError):
                producer.send(b"x")
            with pytest.raises(ClosedError):
                client.queues()
    assert said == [ClosedError]


def test_whoever_waits_at_the_end_is_told_by_the_thread_that_ends() -> None:
    loop, told = ThreadLoop("the loop"), list[str]()

    def end() -> None:
        told.append("closed" if loop.closed else "open")

    def forgotten() -> None:
        told.append("forgotten")

    loop.at_end(end)
    loop.at_end(forgotten)
    loop.cancel_at_end(forgotten)
    loop.start()
    assert told == []
    loop.stop()
    loop.stop()
    assert told == ["closed"]


@pytest.mark.processes
def test_several_threads_use_one_client_at_once(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near), far.producer("q", window=50) as producer:
        seen: list[bytes] = []

        def send(name: str) -> None:
            for number in range(500):
                producer.send(b"%s pipelined %d" % (name.encode(), number))
                if number % 10 == 0:
                    far.send("q", b"%s alone %d" % (name.encode(), number))

        def work() -> None:
            with far.consumer("q", window=100) as consumer:
                while batch := consumer.receive_many(30, timeout=1):
                    seen.extend(delivery.body for delivery in batch)
                    consumer.ack(*batch)
                consumer.ack(confirm=True)

        in_threads(*(lambda name=name: send(name) for name in ("ann", "bob", "cid")), work, work)
        assert len(seen) == len(set(seen)) == 3 * 550
        for name in (b"ann", b"bob", b"cid"):
            mine = [int(body.split()[2]) for body in seen if body.startswith(name + b" pipelined")]
            assert sorted(mine) == list(range(500))
        assert near.queue("q").acknowledged == 3 * 550


def test_what_one_thread_receives_others_read_and_settle(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near):
        read: list[tuple[int, bytes]] = []
        for _ in range(20):
            near.send_many("q", [b"%d" % number for number in range(100)])
            read.clear()
            with far.consumer("q") as consumer:
                batch: list[Delivery] = []
                while len(batch) < 100:
                    batch += consumer.receive_many(100, timeout=10)
                start = threading.Barrier(4)

                def settle(part: int, batch: list[Delivery] = batch, start: threading.Barrier = start) -> None:
                    start.wait()
                    for number in range(part, 100, 4):
                        read.append((number, batch[number].body))
                        batch[number].ack()

                in_threads(*(lambda part=part: settle(part) for part in range(4)))
                far.flush()
            assert sorted(read) == [(number, b"%d" % number) for number in range(100)]
        assert near.queue("q").acknowledged == 2_000
