"""A broker that is killed under blocking clients: they come back, or say what became of each message."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshq import AddressFullError, ConnectionBrokenError, MeshqError, StaleDeliveryError
from meshq.blocking import Client, connect
from meshq.client import FailedOver
from qa.broker_process import BrokerProcess
from tests.client._server import FakeNode, fake_env
from tests.real.blocking_kit import our_threads


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its threads end with its blocks."""
    yield
    assert our_threads() == []


class Mortal:
    """A broker that can be killed and comes back on the same port and directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory / "real")
        self._life = BrokerProcess(self.directory)
        self.url: str = self._life.next_report()

    def freeze(self) -> None:
        """It answers nobody any more."""
        pid = self._life.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """As ``kill -9``."""
        self._life.process.kill()
        self._life.close()

    def restart(self) -> None:
        """Another life."""
        self._life = BrokerProcess(self.directory, port=int(self.url.rpartition(":")[2]))
        assert self._life.next_report() == self.url

    def close(self) -> None:
        """The end."""
        self._life.stop()
        self._life.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    """A broker in a process of its own."""
    broker = Mortal(tmp_path)
    yield broker
    broker.close()


def drain(client: Client, queue: str) -> list[bytes]:
    """All that a queue has."""
    found: list[bytes] = []
    with client.consumer(queue) as consumer:
        while batch := consumer.receive_many(1_000, timeout=1):
            found += [delivery.body for delivery in batch]
            consumer.ack(*batch, confirm=True)
    return found


@pytest.mark.processes
def test_a_producer_goes_on_when_its_broker_was_killed_and_comes_back(mortal: Mortal) -> None:
    with connect(mortal.url, retry_interval=0.01, max_retry_interval=0.05) as client:
        events = client.events()
        with client.producer("q", window=500) as producer:
            for life in range(2):
                for number in range(3_000):
                    producer.send(b"%d/%d" % (life, number), duplicate_id=b"%d/%d" % (life, number))
                    if number == 1_500:
                        mortal.kill()
                        mortal.restart()
        seen = [type(next(events)).__name__ for _ in range(4)]
        assert seen == ["Disconnected", "FailedOver"] * 2
        assert drain(client, "q") == [b"%d/%d" % (life, number) for life in range(2) for number in range(3_000)]


def test_a_consumer_goes_on_and_what_it_had_prefetched_comes_again(mortal: Mortal) -> None:
    with connect(mortal.url, retry_interval=0.01, max_retry_interval=0.05) as client:
        client.send_many("q", [b"%d" % number for number in range(100)])
        with client.consumer("q") as consumer:
            first = consumer.receive(timeout=10)
            assert first is not None
            first.ack(confirm=True)
            second = consumer.receive(timeout=10)
            assert second is not None
            events = client.events()
            mortal.kill()
            mortal.restart()
            while type(next(events)) is not FailedOver:
                pass
            client.queues()
            with pytest.raises(StaleDeliveryError):
                second.ack()
            found: list[bytes] = []
            while len(found) < 99:
                batch = consumer.receive_many(100, timeout=10)
                assert batch
                found += [delivery.body for delivery in batch]
                consumer.ack(*batch)
            client.flush()
            assert sorted(found, key=int) == [b"%d" % number for number in range(1, 100)]
            assert consumer.receive(timeout=0.1) is None


@pytest.mark.processes
def test_a_producer_that_loses_its_broker_for_good_says_what_became_of_each(mortal: Mortal) -> None:
    confirmed = sent = 0
    with (
        pytest.raises(ConnectionBrokenError) as raised,
        connect(mortal.url, reconnect_attempts=0) as client,
        client.producer("q", window=300) as producer,
    ):
        for _ in range(1_000):
            producer.send(b"%d" % sent)
            sent += 1
        producer.flush()
        confirmed = sent
        mortal.freeze()
        for _ in range(200):
            producer.send(b"%d" % sent)
            sent += 1
        mortal.kill()
        while True:
            producer.send(b"%d" % sent)
            sent += 1
    mortal.restart()
    results = raised.value.results
    assert 200 <= len(results) == sent - confirmed <= 300
    assert all(error is not None and error.outcome in ("unknown", "not_done") for error in results)
    with connect(mortal.url) as client:
        found = drain(client, "q")
    assert found == [b"%d" % number for number in range(len(found))]
    not_done = [error for error in results if error is not None and error.outcome == "not_done"]
    assert sent - len(results) <= len(found) <= sent - len(not_done)


def test_every_thread_that_waits_is_told(mortal: Mortal) -> None:
    told: list[MeshqError] = []

    def told_so(client: Client, what: str) -> None:
        with pytest.raises(MeshqError) as raised:
            if what == "consumer":
                with client.consumer("q") as consumer:
                    consumer.receive()
            elif what == "producer":
                with client.producer("r", window=2) as producer:
                    while True:
                        producer.send(b"x")
            else:
                while True:
                    client.send("r", b"x")
        told.append(raised.value)

    client = connect(mortal.url, reconnect_attempts=0)
    with pytest.raises(ConnectionBrokenError), client:
        kinds = ["consumer", "producer", "client", "client"]
        threads = [threading.Thread(target=told_so, args=(client, kind)) for kind in kinds]
        for thread in threads:
            thread.start()
        while client.queue("r").added < 100 if "r" in client.queues() else True:
            pass
        mortal.kill()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    mortal.restart()
    assert [type(error) for error in told] == [ConnectionBrokenError] * 4
    assert len({id(error) for error in told}) == 4


@pytest.mark.parametrize("ending", ["send", "flush", "close", "block"])
def test_a_refused_run_is_told_once_with_what_became_of_every_later_message(ending: str) -> None:
    node = FakeNode()
    # How many messages go together depends on the machine.
    node.refuse = lambda frame: "address_full" if frame.first <= 257 < frame.first + frame.count else None
    env, _ = fake_env(node)
    sent = 0
    with connect("tcp://127.0.0.1:1", env=env) as client:
        producer = client.producer("a")
        with pytest.raises(AddressFullError) as raised, producer:
            # Any of these may be the one that tells; then its own message was not taken.
            while sent < 1_000 or ending == "send":
                producer.send(b"%d" % (sent + 1))
                sent += 1
            if ending != "block":
                {"flush": producer.flush, "close": producer.close}[ending]()
        results = raised.value.results
        failed = [sent - len(results) + place for place, error in enumerate(results, 1) if error is not None]
        assert failed == sorted(set(range(1, sent + 1)) - {int(body) for body in node.bodies})
        assert len(failed) > 0 and results[0] is not None
        with client.producer("a") as other:
            other.send(b"on it goes")
        assert node.bodies[-1] == b"on it goes"


def test_a_producer_goes_on_after_it_has_told_of_a_failure() -> None:
    node = FakeNode()
    node.refuse = lambda frame: "address_full"
    env, _ = fake_env(node)
    with connect("tcp://127.0.0.1:1", env=env) as client, client.producer("a") as producer:
        producer.send(b"refused")
        with pytest.raises(AddressFullError):
            producer.flush()
        node.refuse = lambda frame: None
        producer.send(b"taken")
        producer.flush()
        assert node.bodies == [b"taken"]
