"""The queue of one name on all nodes of a cluster: what each of them answers, and what is said of one that does not."""

from __future__ import annotations

import pytest
import trio

from meshq import (
    AddressSettings,
    ClusterConnection,
    ClusterQueue,
    NotActiveError,
    Permissions,
    QueueOnNode,
    Security,
    SecurityError,
    SettingsError,
    UsageError,
    connect,
)
from meshq.broker.management import _management
from meshq.cluster._questions import PATIENCE_S
from meshq.wire import encode_map
from tests.cluster.hosts import hosts
from tests.cluster.kit import until
from tests.cluster.nodes import connection, nodes
from tests.cluster.test_hops import connections, way


def pair() -> dict[str, list[ClusterConnection]]:
    return {"a": [connection("a", ["b"])], "b": [connection("b", ["a"])]}


def by_name(found: ClusterQueue) -> dict[str, QueueOnNode]:
    return {one.node_name: one for one in found.nodes}


async def test_each_node_answers_for_its_queue_and_its_consumers() -> None:
    async with nodes(pair(), queues=["q"]) as made:
        await made.known("a").wait_for(nodes=2, queue="q", queues=2)
        await made.send("a", "q", 3)
        async with (
            made.brokers["b"].client() as client,
            client.consumer("q", filter="region = 'emea'") as first,
            client.consumer("q", filter="region = 'apac'"),
        ):
            await made.known("a").wait_for(queue="q", consumers=2)
            found = await made.known("a").queue("q")
            remote = await client.cluster_queue("q")
            assert await first.receive(timeout=0) is None
    assert found.complete and remote.complete
    assert [one.node_name for one in found.nodes] == ["a", "b"] and [one.node_name for one in remote.nodes] == [
        "b",
        "a",
    ]
    here, there = by_name(found)["a"], by_name(found)["b"]
    assert (here.state, here.known, here.ready, here.consumers, here.age) == ("here", "answered", 3, 0, None)
    assert (there.state, there.ready, there.consumers) == ("linked", 0, 2)
    assert there.consumer_list is not None
    assert [one.filter for one in there.consumer_list] == ["region = 'emea'", "region = 'apac'"]
    assert there.filters == ("region = 'emea'", "region = 'apac'")
    assert (found.ready, found.consumers, found.in_flight) == (3, 2, 0)
    assert by_name(remote)["a"].ready == 3


async def test_what_waits_for_a_queue_on_a_lost_node_is_in_flight_there_and_the_node_is_described() -> None:
    settings = {"#": AddressSettings(auto_create_queues=False)}
    more = {"cluster": {"connection_ttl": 1.0}, "broker": {"address_settings": settings}}
    async with hosts("ab", **more) as made, trio.open_nursery() as nursery:

        async def consume(*, task_status: trio.TaskStatus[None]) -> None:
            async with made.dial("b", reconnect_attempts=float("inf")) as other:
                await other.create_queue("q")
                async with other.consumer("q", filter="x = 1"):
                    task_status.started()
                    await trio.sleep_forever()

        await nursery.start(consume)
        await made.joined(queue="q", consumers=1)
        await made.crash("b")
        await until(lambda: made.known("a").peers()[0].state == "away")
        await trio.sleep(3)
        async with made.client("a") as client:
            await client.send("q", b"waits", properties={"x": 1})
            found = by_name(await client.cluster_queue("q"))
        nursery.cancel_scope.cancel()
    there = found["b"]
    assert (there.state, there.known, there.exists, there.ready) == ("away", "described", True, None)
    assert there.consumers == 1 and there.filters == ("x = 1",) and there.consumer_list is None
    assert there.age is not None and 3 <= there.age < 4 and there.why
    in_flight = found["a"].in_flight
    assert in_flight is not None and [(one.node_name, one.waiting, one.sent) for one in in_flight] == [("b", 1, 0)]


async def test_an_older_node_is_unknown_beyond_what_it_has_described(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(pair(), queues=["q"]) as made:
        await made.known("a").wait_for(nodes=2, queue="q", queues=2)
        core, answer = made.brokers["b"]._node.core, _management.OPERATIONS["node_queue"]  # type: ignore[union-attr]
        older = {name: one for name, one in _management.OPERATIONS.items() if name != "node_queue"}

        async def ask() -> ClusterQueue:
            calls = made.brokers["b"]._node.core.running_operations  # type: ignore[union-attr]
            assert calls is core.running_operations and answer.between_nodes
            return await made.known("a").queue("q")

        # The asked node knows the operation, the other one does not.
        peer = made.known("a")._peers[0]
        assert peer.link is not None
        known = peer.link.ask

        async def ask_older(operation: str, arguments: dict[str, object]) -> dict[str, object]:
            if operation != "node_queue":
                return await known(operation, arguments)
            monkeypatch.setattr(_management, "OPERATIONS", older)
            try:
                return await known(operation, arguments)
            finally:
                monkeypatch.undo()

        monkeypatch.setattr(type(peer.link), "ask", lambda link, operation, arguments: ask_older(operation, arguments))
        there = by_name(await ask())["b"]
    assert (there.known, there.ready, there.consumers, there.state) == ("described", None, 0, "linked")
    assert there.why == "it is older, and does not answer that"


async def test_a_node_that_does_not_answer_in_time_keeps_nobody_waiting_for_long() -> None:
    async with hosts("ab") as made:
        await made.joined()
        async with made.client("a") as client:
            await client.create_queue("q")
            made.network.kill_host("b")
            began = trio.current_time()
            found = by_name(await client.cluster_queue("q"))
            assert trio.current_time() - began <= PATIENCE_S + 0.1
    assert (found["b"].known, found["b"].exists, found["b"].consumers) == ("unknown", None, None)
    assert found["a"].known == "answered" and found["a"].exists


async def test_nodes_of_a_chain_are_asked_through_those_between() -> None:
    made_by = connections(way("abcd", both=True), max_hops=3)
    async with nodes(made_by) as made, made.brokers["d"].client() as client:
        await client.create_queue("q")
        async with client.consumer("q") as consumer:
            await made.known("a").wait_for(queue="q", consumers=1)
            found = by_name(await made.known("a").queue("q"))
            assert await consumer.receive(timeout=0) is None
    assert {name: (one.state, one.exists, one.known) for name, one in found.items()} == {
        "a": ("here", False, "answered"),
        "b": ("linked", False, "answered"),
        "c": ("behind", False, "answered"),
        "d": ("behind", True, "answered"),
    }
    assert found["d"].consumers == 1


async def test_a_queue_that_is_nowhere_is_nowhere() -> None:
    async with nodes(pair()) as made:
        await made.known("a").wait_for(nodes=2)
        found = await made.known("a").queue("nothing")
        with pytest.raises(SettingsError):
            await made.known("a").queue("")
        async with made.brokers["a"].client() as client:
            with pytest.raises(SettingsError):
                await client.cluster_queue("")
    assert [one.exists for one in found.nodes] == [False, False] and found.ready == 0


async def test_only_an_active_broker_asks_the_nodes_of_its_cluster() -> None:
    async with nodes(pair()) as made:
        known = made.known("a")
        assert (await known.queue("q")).complete
    with pytest.raises(NotActiveError):
        await known.queue("q")


async def test_a_broker_without_a_cluster_is_its_only_node() -> None:
    async with nodes({"a": []}, queues=["q"]) as made, made.brokers["a"].client() as client:
        await client.send("q", b"x")
        found = await client.cluster_queue("q")
    assert [(one.node_name, one.ready) for one in found.nodes] == [("a", 1)]


async def test_who_may_not_look_at_a_queue_learns_nothing_of_it_on_other_nodes() -> None:
    security = Security(users={"app": "secret"}, roles={"app": {"r"}}, permissions={"mine": Permissions(consume={"r"})})
    made_by = pair()
    own = {name: {"security": security, "acceptors": ["tcp://127.0.0.1:0"]} for name in made_by}
    async with nodes(made_by, queues=["mine", "yours"], **own) as made:
        await made.known("a").wait_for(nodes=2)
        async with connect(made.brokers["a"].urls[0], user="app", password="secret") as client:
            found = await client.cluster_queue("mine")
            with pytest.raises(SecurityError):
                await client.cluster_queue("yours")
            about = {"question": "node_queue", "arguments": encode_map({"name": "yours"})}
            with pytest.raises(SecurityError):
                await client._context.ask("ask_node", node_id=found.nodes[1].node_id, **about)
            about["question"] = "purge_queue"
            with pytest.raises(UsageError, match="other nodes are not asked for"):
                await client._context.ask("ask_node", node_id=found.nodes[1].node_id, **about)
    assert found.complete and len(found.nodes) == 2


async def test_messages_that_wait_for_two_queues_of_a_node_are_told_apart() -> None:
    async with (
        nodes(pair()) as made,
        made.brokers["b"].client() as there,
        made.brokers["a"].client() as here,
        there.consumer("one", window=1) as one,
        there.consumer("two", window=1) as two,
    ):
        await made.known("a").wait_for(queue="one", consumers=1)
        await made.known("a").wait_for(queue="two", consumers=1)
        core = made.brokers["a"]._node.core
        (forward,) = [queue for queue in core.router.queues.values() if queue.forwards]
        core.definitions.pause(forward, True)
        for address, count in (("one", 2), ("two", 3)):
            for _ in range(count):
                await here.send(address, b"x")
        counts = [(await made.known("a").queue(name)).in_flight for name in ("one", "two", "three")]
        core.definitions.pause(forward, False)
        core.pending.schedule_dispatch(forward)
        core.pending.run()
        assert await one.receive(timeout=5) and await two.receive(timeout=5)
    assert counts == [2, 3, 0]
