"""A node that leaves hands its messages over to another node: each once, in order, with or without a consumer there."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import pytest
import trio

from meshq import Client, ConnectionBrokenError, Delivery, MeshqError, Message, MessageOrigin, NotActiveError, abc
from meshq.address import Target
from meshq.broker.ingress._redistribution import AHEAD_MAX
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.paging._pager import Pager
from meshq.broker.transactions._transaction import ServerTransaction
from meshq.wire import KIND_PROPERTIES, Binding
from qa.simulation.accounts import recount
from qa.simulation.broker import DIRECTORY
from tests.broker.test_known_shares import run_of
from tests.cluster.drain_service import STEP, Drain
from tests.cluster.hosts import hosts
from tests.cluster.kit import Mesh, bodies, ids, mesh, until

NOBODY_S = 1.0


class Inside(abc.Service):
    """A service that does nothing, through which a test makes the calls of a service."""

    kind: ClassVar[str] = "inside"
    name = "inside"
    broker: abc.LocalBroker

    def announce(self, control: abc.NodeControl) -> None:
        """Nothing is needed."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the broker for the test."""
        self.broker = broker
        task_status.started()
        await trio.sleep_forever()


SETTINGS: dict[str, Any] = {
    "broker": {"queues": ["q", "r"]},
    "own": {"a": {"data_dir": DIRECTORY}},
    "services": lambda: [Inside()],
}


@asynccontextmanager
async def nodes_with_queues(names: str = "ab", **settings: Any) -> AsyncIterator[Mesh]:
    """Nodes that know each other, each with the queues ``q`` and ``r``."""
    async with mesh(names, root="simulated", **{**SETTINGS, **settings}) as nodes:
        await nodes.joined()
        yield nodes


def inside(nodes: Mesh, name: str = "a") -> abc.LocalBroker:
    found = nodes.brokers[name].service("inside")
    assert isinstance(found, Inside)
    return found.broker


def known(nodes: Mesh, queue: str) -> bool:
    """Whether the node ``a`` knows of a queue elsewhere."""
    router = nodes.brokers["a"]._node.core.router
    return any(one.name == queue for one in router.remote(to(nodes).number.to_bytes(8, "big")))


def to(nodes: Mesh, name: str = "b") -> abc.StoreAndForwardQueue:
    return inside(nodes).peers.forwarding(nodes.forward(name))


@asynccontextmanager
async def ousted(nodes: Mesh) -> AsyncIterator[Client]:
    """A client of the node ``a``, which closes within the block."""
    with pytest.raises(MeshqError, match="the node 'a' leaves"):
        async with nodes.client("a") as client:
            yield client


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def drained(nodes: Mesh, *queues: str) -> abc.TransferInventory:
    """Drain the node ``a`` to ``b`` until nothing of some queues is left, and nothing waits for other nodes."""
    drain = Drain(nodes.urls["b"], queues=queues)
    async with trio.open_nursery() as nursery:
        await nursery.start(drain.serve, inside(nodes))

        def ended() -> bool:
            left = drain.left
            return left is not None and not left.forwarded and not {*queues}.intersection(left.messages)

        await until(ended)
        nursery.cancel_scope.cancel()
    assert drain.left is not None
    return drain.left


async def recounted(nodes: Mesh) -> Any:
    """Stop the node ``a``, and recount its journal."""
    await nodes.stop("a")
    return await recount(nodes.machine("a"))


async def taken(nodes: Mesh, name: str, queue: str = "q") -> list[Delivery]:
    return await nodes.drain(name, queue, quiet=NOBODY_S)


async def test_all_messages_of_a_node_go_in_order_to_the_queues_of_their_names_and_none_is_left_in_its_journal() -> (
    None
):
    async with nodes_with_queues() as nodes:
        await nodes.send("b", [b"there before"])
        await nodes.send("a", numbered(1_000))
        async with nodes.client("a") as client:
            await client.send_many("r", [Message(body, durable=False) for body in numbered(300)])
            large = b"large" * 100_000
            await client.send("q", Message(large, priority=4, ttl=900.0, properties={"colour": "red"}))
        left = await drained(nodes, "q", "r")
        assert left.empty
        state = await recounted(nodes)
        assert [name for name, (live, _) in state["queues"].items() if live] == []
        assert [rows for _, rows in state["forwarding"].values() if rows] == []
        found = await taken(nodes, "b")
        assert bodies(found) == [b"there before", *numbered(1_000), large]
        assert found[-1].properties == {"colour": "red"} and found[-1].origin is None
        assert not any(one.redelivered for one in found)
        assert bodies(await taken(nodes, "b", "r")) == numbered(300)


async def test_a_consumer_keeps_nothing_back_and_gets_the_same_messages_at_the_other_node() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await nodes.send("a", numbered(1_000))
        async with there.consumer("q") as elsewhere, here.consumer("q", filter="colour = 'green'"):
            assert await inside(nodes).transfer.move("q", to(nodes), 600) == 600
            assert bodies(await elsewhere.receive_many(600, timeout=5)) == numbered(600)
            assert await elsewhere.receive_many(1, timeout=NOBODY_S) == []


async def test_an_inventory_names_what_is_left_as_a_recount_of_the_journal_does() -> None:
    async with nodes_with_queues("abc", mode="strict") as nodes:
        await nodes.kill("c")
        await nodes.send("a", numbered(60))
        async with ousted(nodes) as client, client.consumer("r") as consumer:
            await client.send("r", Message(b"not due", delay=900.0))
            for number in range(5):
                await client.send("r", b"once", duplicate_id=f"d{number}")
            assert await consumer.receive_many(2, timeout=5)
            async with client.transaction(xid=b"x") as transaction:
                await transaction.send("r", b"prepared")
                await transaction.prepare()
            found = inside(nodes).transfer.inventory()
            await inside(nodes).transfer.close()
            assert inside(nodes).transfer.inventory() == found
        state = await recounted(nodes)
        assert found.prepared == len(state["prepared"]) == 1
        assert found.ids == {name: count for name, count in state["ids"].items() if count} != {}
        assert found.messages == {name: len(live) for name, (live, _) in state["queues"].items() if live}
        assert found.forwarded == {name: len(rows) for name, (_, rows) in state["forwarding"].items() if rows} != {}
        assert not found.empty


async def test_a_closed_node_stores_what_was_sent_before_and_refuses_clients_as_not_active() -> None:
    async with nodes_with_queues() as nodes:
        async with ousted(nodes) as client:
            await client.send("q", b"before")
            await inside(nodes).transfer.close()
            await inside(nodes).transfer.close()
        assert nodes.brokers["a"].statistics().sessions == 1  # the other node's
        with pytest.raises(ConnectionBrokenError, match="the node 'a' leaves") as refused:
            async with nodes.brokers["a"].client(initial_connect_attempts=1):
                pass
        assert isinstance(refused.value.__cause__, NotActiveError)
        assert inside(nodes).transfer.inventory().messages == {"q": 1}
        await drained(nodes, "q")
        assert bodies(await taken(nodes, "b")) == [b"before"]


async def test_a_move_that_is_cancelled_moves_nothing_more() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(5_000))
        with trio.move_on_after(0):
            await inside(nodes).transfer.move("q", to(nodes), 5_000)
        left = inside(nodes).transfer.inventory().messages["q"]
        await trio.sleep(NOBODY_S)
        assert inside(nodes).transfer.inventory().messages == {"q": left}


async def test_an_inventory_counts_what_is_stored_and_not_durable_yet() -> None:
    async with nodes_with_queues() as nodes:
        core = nodes.brokers["a"]._node.core
        run = run_of(random.Random(0), 1)
        run.durable = True
        core.ingress.place(run, Target("q", None), KIND_PROPERTIES, list)
        assert core.router.queues["q"].counts.ready == 0
        assert inside(nodes).transfer.inventory().messages == {"q": 1}


async def test_a_client_that_is_away_when_the_node_closes_loses_its_session_and_what_it_held() -> None:
    async with hosts("ab", **SETTINGS) as nodes:
        await nodes.joined()
        await nodes.send("a", numbered(3))
        counts = nodes.brokers["a"]._node.core.router.queues["q"].counts
        with suppress(MeshqError):
            async with nodes.dial("a", retry_interval=5.0) as client, client.consumer("q") as consumer:
                assert bodies(await consumer.receive_many(3, timeout=5)) == numbered(3)
                nodes.network.reset("a", "client of a")
                await until(lambda: nodes.brokers["a"].statistics().connections == 1)
                assert (nodes.brokers["a"].statistics().sessions, counts.unacked) == (2, 3)
                await inside(nodes).transfer.close()
                assert (nodes.brokers["a"].statistics().sessions, counts.unacked) == (1, 0)


async def test_a_consumer_of_a_closed_node_loses_its_messages_which_go_uncounted_unless_it_had_them() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(100))
        async with ousted(nodes) as client, client.consumer("q", window=50) as consumer:
            assert bodies(await consumer.receive_many(3)) == numbered(3)
            await inside(nodes).transfer.close()
        assert await inside_moved(nodes) == 0
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(100)
        counted = [one.delivery_count for one in found]
        assert counted == sorted(counted, reverse=True) and counted[:3] == [2, 2, 2] and counted[-50:] == [1] * 50


async def inside_moved(nodes: Mesh) -> int:
    """Move what can be moved of ``q``; returns how many stay."""
    while await inside(nodes).transfer.move("q", to(nodes), STEP):
        pass
    return inside(nodes).transfer.inventory().messages.get("q", 0)


async def moved_before(nodes: Mesh) -> None:
    """Have 300 messages in ``q`` of the node ``a``, and as many behind these that were moved there."""
    await nodes.send("a", numbered(300))
    async with nodes.client("a") as client:
        await client.send_many("r", [Message(body, ttl=900.0, delay=0.01) for body in numbered(300, 300)])
        await until(lambda: inside(nodes).transfer.inventory().messages["r"] == 300)
        await trio.sleep(0.02)
        assert await client.move_messages("r", "q") == 300


async def test_a_message_that_was_moved_before_keeps_its_origin_over_crashes_of_both_nodes() -> None:
    async with nodes_with_queues() as nodes:
        await moved_before(nodes)
        assert await inside(nodes).transfer.move("q", to(nodes), 200) == 200
        await nodes.kill("a")
        await nodes.start("a")
        await nodes.joined()
        assert (await drained(nodes, "q")).messages == {}
        stored = nodes.brokers["b"]._node.core.ingress.links
        assert len(stored) == 1
        await nodes.kill("b")
        await nodes.start("b")
        await nodes.joined()
        assert nodes.brokers["b"]._node.core.ingress.links == stored
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(600)
        assert [one.origin for one in found] == [None] * 300 + [MessageOrigin("r", "r", "moved")] * 300


async def test_a_message_that_was_moved_before_and_comes_back_from_its_way_keeps_its_origin() -> None:
    async with nodes_with_queues() as nodes:
        await moved_before(nodes)
        await nodes.kill("b")
        await nodes.start("b")
        await nodes.joined()
        nodes.brokers["b"]._node.core.closing.take_nothing_in("nothing arrives")
        assert await inside(nodes).transfer.move("q", to(nodes), 600) == 600
        await nodes.kill("b")
        await until(lambda: nodes.known("a").peers()[0].state != "linked")
        async with nodes.client("a") as client:
            assert await client.give_back(nodes.forward("b").rpartition(".")[2], force=True) == 600
        found = await taken(nodes, "a")
        assert bodies(found) == numbered(600)
        assert [one.origin for one in found] == [None] * 300 + [MessageOrigin("r", "r", "moved")] * 300


@pytest.mark.parametrize("decision", ["commit", "rollback"])
async def test_a_decision_that_waits_when_the_node_closes_is_not_made(
    monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    waiting: list[Callable[[], None]] = []

    async def decide(client: Client) -> None:
        with pytest.raises(MeshqError):
            await getattr(client, decision)(b"x")

    async with nodes_with_queues() as nodes, trio.open_nursery() as nursery:
        release_queue = nodes.brokers["a"]._node.core.release_queue
        with suppress(MeshqError):
            async with nodes.client("a") as client:
                async with client.transaction(xid=b"x") as transaction:
                    await transaction.send("q", b"prepared")
                    await transaction.prepare()
                with monkeypatch.context() as patched:
                    # A commit waits for room, and a rollback for messages that were paged.
                    patched.setattr(ReleaseQueue, "request_space", lambda self, size, then: waiting.append(then))
                    patched.setattr(Pager, "fault_in", lambda self, queue, view, then: waiting.append(then))
                    patched.setattr(ServerTransaction, "absent", lambda self: None if waiting else (None, None))
                    release_queue.large_bytes = 0
                    nursery.start_soon(decide, client)
                    await until(lambda: bool(waiting))
                    await inside(nodes).transfer.close()
                    (go_on,) = waiting
                    go_on()
        left = inside(nodes).transfer.inventory()
        assert (left.messages, left.prepared) == ({}, 1)


async def test_a_message_with_an_origin_stays_if_the_other_node_does_not_understand_origins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.broker.session._peering.LINK_FEATURES", "something else")
    async with nodes_with_queues() as nodes:
        await moved_before(nodes)
        assert await inside_moved(nodes) == 300
        assert bodies(await taken(nodes, "b")) == numbered(300)


async def test_the_features_of_a_node_hold_for_queues_that_it_describes_before_it_names_the_features() -> None:
    async with nodes_with_queues() as nodes:
        (keeper,) = nodes.known("a")._keepers.values()
        peer = keeper.peer
        peer.end()
        peer.described(Binding(queue=70, name="r", address="r"))
        peer.snapshot()
        peer.opened(0, b"", ["origin"])
        router = nodes.brokers["a"]._node.core.router
        assert {one.features for one in router.bindings("r")} == {("origin",)}


async def test_a_message_that_the_queue_there_does_not_take_stays() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await here.create_queue("some")
        for number in range(6):
            await here.send("some", Message(b"%d" % number, properties={"odd": number % 2}))
        await there.create_queue("some", filter="odd = 1")
        await until(lambda: known(nodes, "some"))
        assert await inside(nodes).transfer.move("some", to(nodes), STEP) == 3
        assert bodies(await taken(nodes, "b", "some")) == [b"1", b"3", b"5"]
        assert inside(nodes).transfer.inventory().messages == {"some": 3}


async def test_messages_stay_if_the_filter_of_the_queue_there_is_not_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.node._local_broker._filters", lambda texts: ())
    async with nodes_with_queues() as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await here.create_queue("some")
        for number in range(6):
            await here.send("some", Message(b"%d" % number, properties={"odd": number % 2}))
        await there.create_queue("some", filter="odd = 1")
        await until(lambda: known(nodes, "some"))
        assert await inside(nodes).transfer.move("some", to(nodes), STEP) == 0
        assert inside(nodes).transfer.inventory().messages == {"some": 6}


async def test_messages_of_an_anycast_address_stay_if_it_is_multicast_there() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await here.create_queue("some")
        await here.send("some", b"not for a subscription")
        await there.create_queue("some", address="some", routing="multicast")
        await until(lambda: known(nodes, "some"))
        assert await inside(nodes).transfer.move("some", to(nodes), STEP) == 0
        assert inside(nodes).transfer.inventory().messages == {"some": 1}


async def test_durable_messages_stay_if_the_queue_there_is_not_durable() -> None:
    async with nodes_with_queues() as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await here.create_queue("some")
        await here.send("some", b"durable")
        await here.send("some", Message(b"not durable", durable=False))
        await there.create_queue("some", durable=False)
        await until(lambda: known(nodes, "some"))
        assert await inside(nodes).transfer.move("some", to(nodes), STEP) == 1
        assert bodies(await taken(nodes, "b", "some")) == [b"not durable"]
        assert inside(nodes).transfer.inventory().messages == {"some": 1}


async def test_a_transfer_that_is_cut_by_a_kill_goes_on_with_what_is_left() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(1_000))
        await inside(nodes).transfer.close()
        for count in (1, 200, 350):
            await inside(nodes).transfer.move("q", to(nodes), count)
            await nodes.kill("a")
            await nodes.start("a")
            await nodes.joined()
        assert (await drained(nodes, "q")).empty
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(1_000)
        assert set(ids(found).values()) == {1}


async def test_other_nodes_hear_how_far_their_messages_are_stored_and_nothing_more_of_theirs_is_stored() -> None:
    async with nodes_with_queues("abc", mode="strict") as nodes:
        await nodes.send("c", numbered(30))
        await inside(nodes).transfer.close()
        await nodes.kill("c")
        await nodes.start("c")
        await nodes.joined("c")
        await nodes.send("c", numbered(30, 30))
        left = await drained(nodes, "q")
        assert left.messages == {} and left.ids == {}
        await nodes.stop("a")
        await until(lambda: "left" in [peer.state for peer in nodes.known("c").peers()])
        async with nodes.client("c") as client:
            assert await client.give_back(bytes(nodes.brokers["a"].node_id).hex()) == 10
        found = await taken(nodes, "b") + await taken(nodes, "c")
        assert sorted(map(int, bodies(found))) == list(range(60))


async def test_only_so_much_goes_ahead_to_a_node_that_does_not_answer_and_the_rest_when_it_does() -> None:
    settings = {**SETTINGS, "cluster": {"connection_ttl": 600.0, "check_period": 100.0}}
    async with hosts("ab", **settings) as nodes:
        await nodes.joined()
        await nodes.send("a", numbered(3_000))
        nodes.network.partition(["a"], ["b"])
        assert 3_000 - await inside_moved(nodes) == sum(inside(nodes).transfer.inventory().forwarded.values())
        assert AHEAD_MAX <= 3_000 - await inside_moved(nodes) < AHEAD_MAX + STEP
        nodes.network.heal()
        assert (await drained(nodes, "q")).empty
