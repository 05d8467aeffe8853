"""The blocking client and broker: threads and sockets, no async."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshq import Message, NotFoundError, TransactionRolledBackError
from meshq.blocking import Broker, Client, Consumer, Delivery, connect
from meshq.client import Connected, Disconnected


def our_threads() -> list[str]:
    """The threads that a blocking object has started."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("meshq: ")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, its threads end with its blocks."""
    assert our_threads() == []
    yield
    assert our_threads() == []


def in_threads(*functions: Callable[[], Any]) -> None:
    """Run functions at once, each in a thread, until all have ended; the first error is raised here."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@contextmanager
def clients(data_dir: Path | None) -> Iterator[list[Client]]:
    """A client over TCP and one in process, of the same broker."""
    where = data_dir / "hq" if data_dir is not None else None
    with (
        Broker("hq", data_dir=where, acceptors=["tcp://127.0.0.1:0"]) as broker,
        connect(broker.urls[0]) as far,
        broker.client() as near,
    ):
        yield [far, near]


def received(consumer: Consumer) -> Delivery:
    """The next message, which is expected."""
    delivery = consumer.receive(timeout=10)
    assert delivery is not None
    return delivery


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_sent_by_either_is_received_by_the_other(tmp_path: Path, durable: bool) -> None:
    with clients(tmp_path if durable else None) as both:
        for sender, receiver in (both, both[::-1]):
            with receiver.consumer("q", window=500) as consumer, sender.producer("q") as producer:
                for number in range(3_000):
                    extra: dict[str, Any] = {"duplicate_id": f"{id(sender)}-{number}", "properties": {"n": number}}
                    producer.send(b"%d" % number, **(extra if number % 2 else {}))
                producer.flush()
                assert producer.unconfirmed == 0
                sender.send_many("q", (message for message in [Message(b"3000", correlation_id="c"), b"3001"]))
                got: list[Delivery] = []
                while len(got) < 3_002:
                    batch = consumer.receive_many(200, timeout=10)
                    assert batch
                    got += batch
                    consumer.ack(*batch)
                consumer.ack(confirm=True)
            assert [delivery.body for delivery in got] == [b"%d" % number for number in range(3_002)]
            assert [delivery.sequence for delivery in got] == sorted({delivery.sequence for delivery in got})
            assert got[1].properties == {"n": 1}
            assert got[1].consumer is consumer
            assert got[3_000].correlation_id == "c"
            statistics = receiver.queue("q")
            assert (statistics.ready, statistics.delivering) == (0, 0)


def test_messages_are_sent_and_settled_one_by_one(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near):
        for number in range(20):
            near.send("q", b"%d" % number, reply_to="answers")
        with far.consumer("q") as consumer:
            for number, delivery in zip(range(20), consumer, strict=False):
                assert delivery.body == b"%d" % number
                delivery.reply(b"re: " + delivery.body)
                if number % 2:
                    delivery.ack()
                else:
                    delivery.reject()
            far.flush()
            assert far.queue("q").acknowledged == 10
            assert far.queue("q").rejected == 10
        assert near.purge_queue("answers") == 20


def test_what_was_only_prefetched_goes_back_unmarked_and_what_was_handed_over_marked(tmp_path: Path) -> None:
    with clients(tmp_path) as both:
        for client in both:
            client.send_many("q", [b"0", b"1", b"2", b"3", b"4"])
            with client.consumer("q") as consumer:
                received(consumer).ack()
                received(consumer).nack()
                received(consumer)
                assert consumer.statistics().received == 3
            assert client.queue("q").ready == 4
            with client.consumer("q") as consumer:
                again = [received(consumer) for _ in range(4)]
                assert [(delivery.body, delivery.delivery_count) for delivery in again] == [
                    *((b"1", 2), (b"2", 2), (b"3", 1), (b"4", 1))
                ]
                consumer.ack(*again, confirm=True)


@pytest.mark.parametrize("taken", [1, 7, 300])
def test_an_automatic_acknowledgement_is_of_what_was_handed_over_and_of_nothing_else(
    tmp_path: Path, taken: int
) -> None:
    with clients(tmp_path) as both:
        for client in both:
            client.send_many("q", [b"%d" % number for number in range(400)])
            with client.consumer("q", ack="auto") as consumer:
                received(consumer)
                while consumer.statistics().received < taken:
                    consumer.receive_many(taken - consumer.statistics().received, timeout=10)
            statistics = client.queue("q")
            assert (statistics.ready, statistics.delivering) == (400 - taken, 0)
            with client.consumer("q") as consumer:
                delivery = received(consumer)
                assert (delivery.body, delivery.redelivered) == (b"%d" % taken, False)
            client.purge_queue("q")


def test_an_automatic_acknowledgement_does_not_wait_for_the_next_call(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near):
        near.send_many("q", [b"1", b"2"])
        with far.consumer("q", ack="auto") as consumer:
            received(consumer)
            while near.queue("q").acknowledged < 1:
                pass
            assert near.queue("q").delivering == 1


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


def test_an_iteration_ends_when_another_thread_closes_the_consumer(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near), far.consumer("q") as consumer:
        near.send("q", b"1")
        seen: list[bytes] = []
        first = threading.Event()

        def work() -> None:
            for delivery in consumer:
                seen.append(delivery.body)
                delivery.ack()
                first.set()

        def close() -> None:
            assert first.wait(10)
            consumer.close()
            consumer.close()

        in_threads(work, close)
        assert seen == [b"1"]


def test_a_consumer_whose_queue_is_deleted_wakes_and_says_so(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near):
        far.create_queue("q")
        timer = threading.Timer(0.1, near.delete_queue, ["q"])
        with pytest.raises(NotFoundError), far.consumer("q") as consumer:
            timer.start()
            consumer.receive(timeout=20)
        timer.join()


def test_a_receive_returns_when_its_time_is_up(tmp_path: Path) -> None:
    with clients(tmp_path) as both:
        for client in both:
            with client.consumer("q") as consumer:
                assert consumer.receive(timeout=0) is None
                assert consumer.receive(timeout=0.05) is None
                assert consumer.receive_many(5, timeout=0.05) == []


def test_queues_are_created_listed_purged_and_deleted(tmp_path: Path) -> None:
    with clients(tmp_path) as (far, near):
        far.create_address("news", routing="multicast")
        far.create_queue("a", address="news", routing="multicast")
        near.create_queue("b", address="news", routing="multicast", durable=False)
        near.send("news", b"x")
        assert far.queues() == ["a", "b"]
        assert far.purge_queue("a") == 1
        far.delete_queue("a")
        with pytest.raises(NotFoundError):
            near.queue("a")


def test_events_and_statistics_tell_what_happens_to_the_connection() -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]))
        client = connect(broker.urls[0], reconnect_attempts=0)
        assert client.statistics().state == "new"
        events = client.events()
        seen: list[Any] = []
        with client:
            assert type(next(events)) is Connected
            assert client.statistics().state == "connected"
            assert broker.statistics().connections == 1
            watcher = threading.Thread(target=lambda: seen.extend(events))
            watcher.start()
        watcher.join(10)
        assert seen == []
        assert list(client.events()) == []
        assert client.statistics().state == "closed"


def test_events_tell_of_a_broker_that_stops() -> None:
    broker = Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"])
    broker.__enter__()
    client = connect(broker.urls[0], retry_interval=0.01)
    with client:
        events = client.events()
        broker.stop()
        assert type(next(events)) is Disconnected
        broker.__exit__(None, None, None)


def test_a_session_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with clients(tmp_path) as both:
        for client in both:
            with client.session() as other:
                other.send("q", b"x")
                assert other.statistics().session != client.statistics().session


def test_a_flush_of_the_client_is_of_what_its_producers_have_taken(tmp_path: Path) -> None:
    with clients(tmp_path) as both:
        for client in both:
            with client.producer("q") as producer:
                for _ in range(500):
                    producer.send(b"x")
                client.flush()
                assert client.queue("q").ready == 500
                assert producer.statistics().unconfirmed == 0
                assert producer.statistics().sent == 500
            client.purge_queue("q")


def test_a_producer_waits_while_its_window_is_full() -> None:
    with clients(None) as (far, _), far.producer("q", window=10) as producer:
        for number in range(2_000):
            producer.send(b"x" * (number % 50) * 1_000, durable=bool(number % 3))
            assert producer.unconfirmed <= 10
        producer.flush()
        assert far.queue("q").added == 2_000


@pytest.mark.parametrize("durable", [True, False])
def test_a_transaction_of_a_thread_counts_whole_or_not_at_all(tmp_path: Path, durable: bool) -> None:
    with clients(tmp_path if durable else None) as both:
        for client in both:
            client.send_many("in", [b"1", b"2", b"3"])
            with client.consumer("in") as consumer:
                deliveries = [received(consumer) for _ in range(3)]
                with client.transaction() as tx:
                    tx.ack(*deliveries[:2])
                    tx.send("out", b"a")
                with pytest.raises(ZeroDivisionError), client.transaction() as failing:
                    failing.ack(deliveries[2])
                    failing.send("out", b"b")
                    raise ZeroDivisionError
                assert (tx.state, failing.state) == ("committed", "rolled back")
                again = received(consumer)
                assert (again.body, again.delivery_count) == (b"3", 2)
                flagged = client.transaction()
                with pytest.raises(TransactionRolledBackError), flagged:
                    flagged.ack(again)
                    flagged.mark_rollback_only()
                    assert flagged.rollback_only
                with client.transaction() as last:
                    last.ack(received(consumer))
                    last.commit()
                with client.transaction() as nothing:
                    nothing.rollback()
                    assert repr(nothing) == "<Transaction rolled back sent=0 acked=0>"
            with client.consumer("out") as consumer:
                delivery = received(consumer)
                assert delivery.body == b"a"
                delivery.ack()
                assert consumer.receive(timeout=0.1) is None
