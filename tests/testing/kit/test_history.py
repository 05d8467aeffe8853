"""The history of a cluster in a test: what is recorded of clients, and that checkers find what is wrong in it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from meshq import AddressSettings, Client, Message
from meshq.errors import DuplicateError, MeshqError, NotFoundError
from meshq.testing import Cluster, HistoryError, simulate
from meshq.testing.history._history import History
from meshq.testing.history._judged_stores import recoveries_of
from meshq.testing.kit import _judged_nodes
from tests.testing.kit.test_cluster import receive, send
from tests.testing.kit.worlds import in_cluster

PATIENT = {"initial_connect_attempts": 10_000, "reconnect_attempts": 10_000}


def lines(cluster: Cluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.history.to_jsonl().splitlines()]


def test_all_that_clients_do_is_recorded_with_what_became_of_it_in_the_order_of_time() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            await client.send("orders", Message(b"a", duplicate_id="first", durable=False))
            await client.send_many("orders", [b"b", Message(b"c")])
            async with client.transaction() as transaction:
                await transaction.send("orders", b"d")
                await transaction.commit()
            async with client.producer("orders") as producer:
                await producer.send(b"e")
            with pytest.raises(MeshqError):
                await client.send("$meshq.nothing", b"f")
            async with client.consumer("orders") as consumer:
                (one,) = await consumer.receive_many(1, timeout=5)
                two = await consumer.receive(timeout=5)
                assert two is not None
                await one.ack(confirm=True)
                await two.nack()
                await (await consumer.receive(timeout=5)).reject()  # type: ignore[union-attr]
            async with client.consumer("orders", browse=True) as browser:
                assert [one.body async for one in browser]
        cluster.kill("n0")
        rows = lines(cluster)
        assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
        sends = {row["body"]: row for row in rows if row["kind"] == "send"}
        assert {body: row["outcome"] for body, row in sends.items()} == dict.fromkeys("abcd", "done") | {
            # The confirm of a producer comes later.
            "e": None,
            "f": "not_done",
        }
        assert (sends["a"]["duplicate_id"], sends["a"]["durable"], sends["c"]["durable"]) == ("first", False, True)
        assert [bool(sends[body]["transaction"]) for body in "cd"] == [False, True]
        deliveries = [row for row in rows if row["kind"] == "delivery"]
        assert [(row["body"], row["node"], row["queue"]) for row in deliveries[:2]] == [
            ("a", "n0", "orders"),
            ("b", "n0", "orders"),
        ]
        assert len(deliveries) == 3
        assert [(row["kind"], row["outcome"]) for row in rows if "deliveries" in row] == [
            ("ack", "done"),
            ("nack", None),
            ("reject", None),
        ]
        assert rows[-1] | {"at": 0} == {"at": 0, "kind": "event", "node": "n0", "text": "killed"}

    in_cluster(test, nodes=1)


def test_what_is_right_is_right_while_messages_are_there_and_when_they_are_gone() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b", b"b")
        assert cluster.history.check() == ["orders"]
        cluster.kill("n0")
        assert cluster.history.check() == ["orders"]
        await cluster.restart("n0")
        assert await receive(cluster, "n1") == [b"a", b"b", b"b"]
        await cluster.settled()
        assert cluster.history.check() == ["orders"]

    in_cluster(test, nodes=2)


def corrupted_send(history: History, **facts: Any) -> int:
    return history.sent("client 99", "orders", facts.pop("uid", 99), **facts)


def lose(cluster: Cluster, history: History) -> None:
    cluster._world.recorder.bodies += [b"?"] * 99
    history.send_ok(corrupted_send(history))


def invent(cluster: Cluster, history: History) -> None:
    del history.sends[1]


def deliver_what_was_refused(cluster: Cluster, history: History) -> None:
    history.sends[1].outcome = "not_done"


def double(cluster: Cluster, history: History) -> None:
    history.deliveries.append(attrs.evolve(history.deliveries[0], number=7, sequence=77))


def double_with_an_id(cluster: Cluster, history: History) -> None:
    history.sends[1].duplicate_id = "d"
    double(cluster, history)


def bring_back(cluster: Cluster, history: History) -> None:
    first = history.deliveries[0]
    again = attrs.evolve(first, number=7, at_s=first.at_s + 100, redelivered=True, delivery_count=2)
    history.deliveries.append(again)


def mix(cluster: Cluster, history: History) -> None:
    first, second = history.deliveries[:2]
    first.sequence, second.sequence = second.sequence, first.sequence


def miscount(cluster: Cluster, history: History) -> None:
    cluster.broker("n0")._node.core.router.queues["orders"].counts.added += 1  # type: ignore[union-attr]


def share(cluster: Cluster, history: History) -> None:
    """Another consumer has the first message at the same time, and both acknowledgements are confirmed."""
    first = history.deliveries[0]
    other = attrs.evolve(first, number=7, consumer="consumer 99", at_s=first.at_s, settlements=[])
    history.deliveries.append(other)
    settlement = attrs.evolve(first.settlements[0], op=99, deliveries=(other,))
    other.settlements.append(settlement)
    history.settlements[99] = settlement


def leave(cluster: Cluster, history: History) -> None:
    history.final.nodes.left.append("n0 has 1 open files")


def count_what_was_not_sent(cluster: Cluster, history: History) -> None:
    """The counters add up, and are wrong."""
    counts = cluster.broker("n0")._node.core.router.queues["orders"].counts  # type: ignore[union-attr]
    counts.added += 1
    counts.acknowledged += 1


@pytest.mark.parametrize(
    ("corrupt", "checkers"),
    [
        (lose, {"Q1"}),
        (invent, {"Q2"}),
        (deliver_what_was_refused, {"Q3"}),
        (double_with_an_id, {"Q4", "Q5"}),
        (double, {"Q5"}),
        (bring_back, {"Q6"}),
        (mix, {"Q7"}),
        (miscount, {"Q8", "Q17"}),
        (share, {"Q12"}),
        (leave, {"Q16"}),
        (count_what_was_not_sent, {"Q17"}),
    ],
)
def test_a_history_that_was_corrupted_by_hand_breaks_the_promise_that_it_breaks(
    corrupt: Callable[[Cluster, History], None], checkers: set[str]
) -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client, client.consumer("orders") as consumer:
            for body in (b"a", b"b"):
                await client.send("orders", body)
                await (await consumer.receive(timeout=5)).ack(confirm=True)  # type: ignore[union-attr]
        await cluster.settled()
        cluster.history.check()
        corrupt(cluster, cluster._world.recorder.history)
        with pytest.raises(HistoryError) as caught:
            cluster.history.check()
        # Counters that clients know differ from what a corrupted history says.
        assert checkers <= set(caught.value.checkers) <= checkers | {"Q7", "Q17"}

    in_cluster(test, nodes=1)


def checked(cluster: Cluster) -> tuple[str, ...]:
    """The checkers that find something."""
    try:
        cluster.history.check()
    except HistoryError as error:
        return error.checkers
    return ()


@pytest.mark.slow
@pytest.mark.parametrize("ha", ["shared_store", "replication"])
def test_a_node_that_acts_when_the_other_one_of_its_pair_has_acted_is_named(ha: str) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.kill("n0")
        await cluster.settled()
        await send(cluster, "n0b", b"b")
        await cluster.healed()
        assert checked(cluster) == ()
        acts = cluster._world.recorder.history.final.nodes.acts
        assert [act.node for act in acts] == ["n0", "n0b"]
        acts.append(attrs.evolve(acts[0], at_s=trio.current_time()))
        with pytest.raises(HistoryError, match=r"Q9: n0 acts for n0 at .* s, after 2 terms, one later than its own"):
            cluster.history.check()

    in_cluster(test, nodes=1, ha=ha)


@pytest.mark.slow
def test_copies_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        await cluster.settled()
        assert checked(cluster) == ()
        monkeypatch.setattr(_judged_nodes, "digests_of", lambda disk: {7: str(id(disk)), 8: "equal"})
        with pytest.raises(HistoryError, match="Q10: n0: record 7 on n0 differs from that on n0b, as do 0 more"):
            cluster.history.check()

    in_cluster(test, nodes=1, ha="replication")


def test_a_recovery_that_comes_to_something_else_after_a_crash_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        assert checked(cluster) == ()
        ways = dict(recoveries_of(cluster.node("n0").machine.disk))
        assert list(ways) == ["once", "twice", "after a power loss in the middle"]
        monkeypatch.setattr(_judged_nodes, "recoveries_of", lambda disk: [("once", 1), ("twice", 2)])
        with pytest.raises(HistoryError, match="Q15: the store of n0 recovered to 2 twice, to 1 once"):
            cluster.history.check()

    in_cluster(test, nodes=1)


def test_a_message_that_is_dead_twice_or_dead_and_consumed_is_named() -> None:
    settings = {"orders": AddressSettings(dead_letter_address="dead")}

    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            async with client.consumer("orders") as consumer:
                await client.send("orders", b"a")
                await (await consumer.receive(timeout=5)).reject()  # type: ignore[union-attr]
            async with client.consumer("dead") as consumer:
                await (await consumer.receive(timeout=5)).ack(confirm=True)  # type: ignore[union-attr]
        assert checked(cluster) == ()
        history = cluster._world.recorder.history
        first, second = history.deliveries
        done = second.settlements[0]
        again = attrs.evolve(second, number=7, sequence=second.sequence + 1, at_s=second.at_s + 1)
        history.deliveries.append(again)
        with pytest.raises(HistoryError, match="Q13: message 1 was dead-lettered 2 times, to dead"):
            cluster.history.check()
        history.deliveries.remove(again)
        first.settlements[:] = [attrs.evolve(done, deliveries=(first,))]
        with pytest.raises(HistoryError, match="Q13: message 1 was consumed from orders, and is dead-lettered to dead"):
            cluster.history.check()
        # An operator who moves dead letters makes them die again.
        async with cluster.client("n0") as client:
            await client.redrive("dead")
        assert checked(cluster) == ()

    in_cluster(test, nodes=1, queues=["orders", "dead"], address_settings=settings)


def test_more_is_lost_than_there_is_left() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        history = cluster._world.recorder.history
        cluster._world.recorder.bodies += [b"?"] * 99
        history.send_ok(corrupted_send(history))
        with pytest.raises(HistoryError, match="3 confirmed messages of orders are not settled, and 2 are there"):
            cluster.history.check()
        # While its store is served by no node, nobody knows.
        cluster.kill("n0")
        assert cluster.history.check() == ["orders"]

    in_cluster(test, nodes=1)


def test_queues_that_may_lose_messages_are_not_judged() -> None:
    settings = {
        "small": AddressSettings(full_policy="drop", max_size_messages=1),
        "prices": AddressSettings(default_last_value_key="of"),
    }
    queues = ["orders", "small", "prices", "purged", "late"]

    async def test(cluster: Cluster) -> None:
        assert cluster.history.check() == ["late", "orders", "purged"]
        async with cluster.client("n0") as client:
            await client.send("purged", b"a")
            await client.purge_queue("purged")
            await client.send("late", b"b", ttl=1)
            await trio.sleep(5)
            await client.send("late", b"c")
        assert cluster.history.check() == ["orders"]

    in_cluster(test, nodes=1, queues=queues, address_settings=settings)


async def send_two_bodies_of_an_id(client: Client) -> None:
    await client.send("orders", b"42, first attempt", duplicate_id="42")
    await client.send("orders", b"42, second attempt", duplicate_id="42")


async def send_by_the_full_name(client: Client) -> None:
    await client.send("orders::orders", b"a")


async def consume_by_the_full_name(client: Client) -> None:
    await client.send("orders", b"a")
    async with client.consumer("orders::orders") as consumer:
        await (await consumer.receive(timeout=5)).ack(confirm=True)  # type: ignore[union-attr]


async def delete(client: Client) -> None:
    await client.send("orders", b"a")
    await client.delete_queue("orders")
    await client.send("orders", b"b")


async def move_in(client: Client) -> None:
    await client.send("other", b"a")
    await client.move_messages("other", address="orders")


async def delete_what_is_not_there(client: Client) -> None:
    await client.send("orders", b"a")
    with pytest.raises(NotFoundError):
        await client.delete_queue("nothing::orders")


async def send_durable_what_was_not(client: Client) -> None:
    for durable in (False, True, False, True):
        await client.send("orders", b"%d" % durable, duplicate_id="42", durable=durable)


async def repeat_an_id_in_a_transaction(client: Client) -> None:
    await client.send("orders", b"first", duplicate_id="42")
    # A body of its own, and the same one.
    for number, body in enumerate((b"second", b"first")):
        with pytest.raises(DuplicateError):
            async with client.transaction() as refused:
                await refused.send("orders", body, duplicate_id="42")
                await refused.send("orders", b"other %d" % number)
        with pytest.raises(KeyError):
            async with client.transaction() as left:
                await left.send("orders", body, duplicate_id="42")
                await left.send("orders", b"third %d" % number)
                raise KeyError
        dropped = client.transaction()
        async with dropped:
            await dropped.send("orders", body, duplicate_id="42")
            await dropped.send("orders", b"fourth %d" % number)
            await dropped.rollback()


async def cancel_a_commit_that_is_refused(client: Client) -> None:
    await client.send("orders", b"first", duplicate_id="42")
    with trio.CancelScope() as scope:
        async with client.transaction() as refused:
            await refused.send("orders", b"second", duplicate_id="42")
            await refused.send("orders", b"other")
            scope.cancel()


async def commit_without_what_was_not_taken(client: Client) -> None:
    async with client.transaction() as transaction:
        await transaction.send("orders", b"a")
        with pytest.raises(MeshqError):
            await transaction.send("orders", b"b", priority=10)
        with trio.CancelScope() as scope:
            scope.cancel()
            for _ in range(100):
                await transaction.send("orders", b"c")


@pytest.mark.parametrize(
    ("program", "judged"),
    [
        (send_two_bodies_of_an_id, ["orders"]),
        (send_durable_what_was_not, ["orders"]),
        (repeat_an_id_in_a_transaction, ["orders"]),
        (cancel_a_commit_that_is_refused, ["orders"]),
        (commit_without_what_was_not_taken, ["orders"]),
        (send_by_the_full_name, ["orders"]),
        (consume_by_the_full_name, ["orders"]),
        (delete, []),
        (move_in, []),
        (delete_what_is_not_there, ["orders"]),
    ],
)
def test_a_right_program_is_not_accused(program: Callable[[Client], Awaitable[None]], judged: list[str]) -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            await program(client)
            assert cluster.history.check() == judged  # what is left
            async with client.consumer("orders") as consumer:
                while (message := await consumer.receive(timeout=1)) is not None:
                    await message.ack(confirm=True)
        await cluster.settled()
        assert cluster.history.check() == judged

    in_cluster(test, nodes=1)


def test_a_queue_that_was_purged_is_not_judged_when_its_node_has_started_again() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            await client.send("orders", b"a")
            await client.purge_queue("orders")
        cluster.kill("n0")
        await cluster.restart("n0")
        assert cluster.history.check() == []

    in_cluster(test, nodes=1)


def test_both_bodies_of_a_duplicate_id_are_one_message_too_many_and_none_of_them_is_a_lost_one() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client("n0") as client:
            await send_two_bodies_of_an_id(client)
        assert await receive(cluster, "n0") == [b"42, first attempt"]
        await cluster.settled()
        history = cluster._world.recorder.history
        first = history.deliveries[0]
        history.deliveries.append(attrs.evolve(first, number=1, uid=2, sequence=first.sequence + 1))
        assert "Q4" in checked(cluster)
        history.deliveries.clear()
        history.settlements.clear()
        assert "Q1" in checked(cluster)

    in_cluster(test, nodes=1)


async def busy(cluster: Cluster) -> None:
    async def produce(tag: bytes, durable: bool) -> None:
        async with cluster.client(**PATIENT) as client:
            for number in range(8):
                body = b"%s%d" % (tag, number)
                while True:
                    try:
                        await client.send("orders", body, durable=durable, duplicate_id=body.decode())
                    except MeshqError:
                        await trio.sleep(0.1)
                    else:
                        break
                await trio.sleep(cluster.rng.uniform(0, 1.5))

    async def consume() -> None:
        async with cluster.client(**PATIENT) as client:

            async def work(order: object) -> None:
                if cluster.rng.random() < 0.1:
                    raise ValueError("not today")

            await client.serve("orders", work)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        async with trio.open_nursery() as producers:
            producers.start_soon(produce, b"a", True)
            producers.start_soon(produce, b"b", False)
        await cluster.healed(timeout=200)
        await trio.sleep(120)
        nursery.cancel_scope.cancel()
    await trio.sleep(60)
    await cluster.settled()
    assert cluster.history.check() == ["orders"]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_no_fault_makes_a_history_wrong(nodes: int) -> None:
    simulate(busy, seeds=8, nodes=nodes, queues=["orders"], duration=10).check()
