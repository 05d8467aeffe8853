"""Messages for nodes that are not linked directly: chains and rings, and what becomes of what is on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Delivery
from tests.cluster.chains import CHAIN, connections, numbered, way
from tests.cluster.kit import Mesh, bodies, mesh, until
from tests.cluster.nodes import Nodes, connection, nodes


@asynccontextmanager
async def consumed(made: Nodes, names: str, queue: str = "q") -> AsyncIterator[dict[str, list[bytes]]]:
    """Consumers at some nodes, which take everything."""
    got: dict[str, list[bytes]] = {name: [] for name in names}

    async def take(name: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with made.brokers[name].client() as client, client.consumer(queue) as consumer:
            task_status.started()
            async for delivery in consumer:
                got[name].append(delivery.body)
                await delivery.ack()

    async with trio.open_nursery() as nursery:
        for name in names:
            await nursery.start(take, name)
        yield got
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("hops", "there"), [(1, 0), (2, 10)])
async def test_a_chain_of_three_needs_two_hops_and_with_one_messages_stay(hops: int, there: int) -> None:
    async with nodes(connections(CHAIN, max_hops=hops)) as made:
        async with consumed(made, "c") as got:
            await made.known("b").wait_for(queue="q", consumers=1, timeout=5)
            await trio.sleep(1)
            assert [one.distance for one in made.known("a").bindings("q")] == [2] * (hops - 1)
            await made.send("a", "q", 10)
            await trio.sleep(1)
            assert got["c"] == numbered(there)
        assert await made.ready("q") == {"a": 10 - there, "c": 0}
        # One way only: nothing goes from c to a, and b relays without a queue of that name.
        assert made.links() == [("a", "b"), ("b", "c")]


@pytest.mark.parametrize("mode", ["strict", "on_demand"])
async def test_the_last_node_of_a_chain_decides_and_not_the_one_between(mode: str) -> None:
    own = {name: {"queues": ["q"]} for name in "ac"}
    async with nodes(connections(CHAIN, max_hops=2, load_balancing=mode), **own) as made:
        known = made.known("a")
        await known.wait_for(queue="q", queues=2, timeout=5)
        await made.send("a", "q", 10)
        await trio.sleep(1)
        # Nobody consumes: strict deals to both all the same.
        assert await made.ready("q") == ({"a": 5, "c": 5} if mode == "strict" else {"a": 10, "c": 0})
        async with made.brokers["c"].client() as client, client.consumer("q", filter="colour = 'red'"):
            await known.wait_for(queue="q", consumers=1, timeout=5)
            async with made.brokers["a"].client() as here:
                for number in range(10):
                    await here.send("q", b"x", properties={"colour": "red" if number % 2 else "blue"})
            await trio.sleep(1)
            if mode == "on_demand":
                assert (await client.queue("q")).delivering == 5


async def test_with_a_link_that_is_off_nothing_goes_through() -> None:
    cluster = {
        "a": [connection("a", ["b"], max_hops=2, allow_direct_connections_only=True)],
        "b": [connection("b", ["c"], max_hops=2, load_balancing="off")],
        "c": [connection("c", [])],
    }
    async with nodes(cluster, c={"queues": ["q"]}) as made:
        await made.known("b").wait_for(queue="q", queues=1, timeout=5)
        await trio.sleep(1)
        assert made.known("a").bindings() == ()


@pytest.mark.parametrize(("hops", "reached"), [(4, "abcde"), (3, "abcd")])
async def test_a_chain_of_five_needs_four_hops_and_with_three_the_last_node_gets_nothing(
    hops: int, reached: str
) -> None:
    async with nodes(connections(way("abcde"), max_hops=hops, load_balancing="strict"), ["q"]) as made:
        await made.known("a").wait_for(nodes=len(reached), queue="q", queues=len(reached), exactly=True, timeout=5)
        found = {one.node_name: one.distance for one in made.known("a").bindings("q")}
        assert found == {name: distance for distance, name in enumerate(reached) if distance}
        await made.send("a", "q", 4 * len(reached))
        await trio.sleep(2)
        assert await made.ready("q") == {name: 4 if name in reached else 0 for name in "abcde"}


@pytest.mark.parametrize(("both", "hops"), [(True, 2), (False, 3)])
async def test_in_a_ring_of_four_each_node_gets_its_share_and_no_message_sees_a_node_twice(
    both: bool, hops: int
) -> None:
    links = way("abcd", ring=True, both=both)
    async with nodes(connections(links, max_hops=hops, load_balancing="strict"), ["q"]) as made:
        for name in "abcd":
            await made.known(name).wait_for(nodes=4, queue="q", queues=4, exactly=True, timeout=5)
        assert len(made.links()) == (8 if both else 4)
        for name in "abcd":
            distances = Counter(one.distance for one in made.known(name).bindings("q"))
            assert distances == ({1: 2, 2: 1} if both else {1: 1, 2: 1, 3: 1})
            await made.send(name, "q", 40)
        await trio.sleep(2)
        assert await made.ready("q") == dict.fromkeys("abcd", 40)
        # Of the 40 from each node ten stay, and the others cross as many links as their nodes are away.
        crossed = sum(link.carried for name in "abcd" for link in made.known(name).bridges())
        assert crossed == 4 * 10 * (1 + 1 + 2 if both else 1 + 2 + 3)
        got = [body for name in "abcd" for body in await made.received(name, "q")]
        assert Counter(got) == Counter(numbered(40) * 4)


async def test_of_three_hundred_messages_among_three_strict_nodes_each_is_stored_once_after_one_hop_at_most() -> None:
    links = {name: [other for other in "abc" if other != name] for name in "abc"}
    async with nodes(connections(links, max_hops=2, load_balancing="strict"), ["q"]) as made:
        for name in "abc":
            await made.known(name).wait_for(nodes=3, queue="q", queues=3, exactly=True, timeout=5)
        for name in "abc":
            await made.send(name, "q", 100)
        await trio.sleep(2)
        assert sum((await made.ready("q")).values()) == 300
        # The rotation begins here, so 34 of each 100 stay.
        assert sum(link.carried for name in "abc" for link in made.known(name).bridges()) == 300 - 3 * 34


async def test_every_subscription_behind_a_node_gets_its_copy_and_each_message_crosses_a_link_once() -> None:
    async with nodes(connections(way("abcd"), max_hops=3)) as made:
        for name in "bcd":
            async with made.brokers[name].client() as client:
                await client.create_address("news", routing="multicast")
                await client.create_queue(f"s-{name}", address="news", routing="multicast")
        await made.known("a").wait_for(address="news", queues=3, exactly=True, timeout=5)
        await made.send("a", "news", 10)
        await trio.sleep(1)
        for name in "bcd":
            assert await made.ready(f"s-{name}") == {name: 10}
        assert made.known("a").bridges()[0].carried == 10
        # Beyond that each queue has its own.
        assert made.known("b").bridges()[0].carried == 10


async def test_waiting_messages_go_to_a_consumer_two_links_away_once_and_in_order() -> None:
    settings = {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=0.0)}}
    async with nodes(connections(CHAIN, max_hops=2), a=settings, c=settings) as made:
        await made.known("a").wait_for(queue="q", queues=2, timeout=5)
        await made.send("a", "q", 100)
        assert await made.ready("q") == {"a": 100, "c": 0}
        async with consumed(made, "c") as got:
            await until(lambda: len(got["c"]) == 100)
            assert got["c"] == numbered(100)
        assert await made.ready("q") == {"a": 0, "c": 0}


# -- when nodes go and come


async def chained(made: Mesh) -> None:
    """The last of a chain has a queue, and the first knows of it."""
    async with made.client("c") as client:
        await client.create_queue("q")
    await made.known("a").wait_for(queue="q", queues=1, timeout=5)


@asynccontextmanager
async def chain(**settings: Any) -> AsyncIterator[Mesh]:
    kept = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    cluster = {"max_hops": 2, "allow_direct_connections_only": True}
    settings = {"cluster": cluster, "root": "simulated", "others": CHAIN, "broker": kept, **settings}
    async with mesh("abc", **settings) as made:
        yield made


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_what_is_sent_while_the_node_between_is_away_arrives_once_when_it_is_back(how: str) -> None:
    async with chain() as made:
        await chained(made)
        await made.send("a", numbered(10))
        await (made.stop if how == "stop" else made.kill)("b")
        await made.send("a", numbered(10, 10))
        await trio.sleep(1)
        await made.start("b")
        await until(lambda: made.known("a").nodes() == 3)
        await made.send("a", numbered(10, 20))
        assert bodies(await made.drain("c")) == numbered(30)
        assert await made.left() == {}


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_node_between_may_restart_with_messages_that_it_holds_for_the_last(how: str) -> None:
    async with chain() as made:
        await chained(made)
        await made.kill("c")
        await made.send("a", numbered(10))
        await until(lambda: made.known("a").peers()[0].waiting == 0)
        assert made.known("b").peers()[0].waiting == 10
        await (made.stop if how == "stop" else made.kill)("b")
        await made.start("b")
        await trio.sleep(1)
        # It knows them by its own numbers still.
        await made.send("a", numbered(10, 10))
        await until(lambda: made.known("b").peers()[0].waiting == 20)
        await made.start("c")
        assert bodies(await made.drain("c")) == numbered(20)
        assert await made.left() == {}


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_node_that_is_gone_behind_another_one_is_marked_and_gets_nothing_that_others_take(how: str) -> None:
    async with chain(own={"a": {"queues": ["q"]}}) as made:
        async with made.client("c") as client:
            await client.create_queue("only-c")
            await client.create_queue("q")
        async with made.client("a") as client, client.consumer("q"):
            await made.known("a").wait_for(queue="q", queues=2, timeout=5)
            await (made.stop if how == "stop" else made.kill)("c")
            await made.known("a").wait_for(queue="q", queues=1, consumers=1, exactly=True, timeout=5)
            assert made.known("a").bindings() == ()
            await made.send("a", numbered(10))
            # What only it has waits for it, on the way.
            await made.send("a", numbered(10), "only-c")
            await until(lambda: made.known("b").peers()[0].waiting == 10)
            await made.start("c")
            assert bodies(await made.drain("c", "only-c")) == numbered(10)
            assert (await client.queue("q")).delivering == 10


async def test_the_node_between_may_restart_while_answers_wait_for_a_queue_that_goes_with_its_session() -> None:
    async with chain(broker={"address_settings": {}}) as made, made.client("c") as asking:
        queue = await asking.create_temporary_queue()
        await made.known("a").wait_for(address=queue, queues=1, timeout=5)
        await made.kill("b")
        await made.send("a", numbered(10), queue)
        await made.start("b")
        async with asking.consumer(queue) as consumer:
            got: list[Delivery] = []
            while batch := await consumer.receive_many(10, timeout=2):
                got += batch
                await consumer.ack(*batch)
        assert bodies(got) == numbered(10)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_node_between_that_starts_anew_keeps_what_comes_for_a_node_that_had_left_before(how: str) -> None:
    async with chain() as made:
        await chained(made)
        await made.stop("c")
        await (made.stop if how == "stop" else made.kill)("b")
        await made.send("a", numbered(10))
        await made.start("b")
        await until(lambda: made.known("a").peers()[0].waiting == 0)
        assert await made.left("a", "b") == {f"b/{made.forward('c')}": 10}
        await made.start("c")
        assert bodies(await made.drain("c")) == numbered(10)


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
async def test_a_node_between_whose_store_is_new_gets_nothing_before_it_knows_the_nodes_behind_it(
    returns: bool,
) -> None:
    cluster = {"max_hops": 2, "allow_direct_connections_only": True, "max_retry_interval": 2.0}
    async with chain(cluster=cluster, own={"b": {"data_dir": None, "node_id": bytes(range(16))}}) as made:
        await chained(made)
        await made.kill("b", "c")
        await made.send("a", numbered(10))
        await made.start("b")
        await trio.sleep(25)
        (peer,) = made.known("a").peers()
        assert (peer.connected, peer.waiting) == (False, 10)
        assert "does not know the nodes behind it yet" in str(peer.error)
        if returns:
            await made.start("c")
            assert bodies(await made.drain("c", quiet=5)) == numbered(10)
        # It waits for the other node no longer than half a minute.
        await trio.sleep(10)
        (peer,) = made.known("a").peers()
        assert (peer.connected, peer.waiting) == (True, 0)


async def test_requests_are_answered_over_more_than_one_hop() -> None:
    async def answer(request: Delivery) -> None:
        await request.reply(b"re " + request.body)

    settings: dict[str, Any] = {"broker": {"address_settings": {}}, "others": way("abc", both=True)}
    async with (
        chain(**settings) as made,
        made.client("a") as client,
        made.client("c") as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(server.serve, "ask", answer)
        await made.known("a").wait_for(queue="ask", consumers=1, timeout=5)
        for number in range(3):
            assert (await client.request("ask", b"%d" % number, timeout=10)).body == b"re %d" % number
        nursery.cancel_scope.cancel()


async def test_what_belongs_to_a_message_comes_along_and_a_duplicate_is_one_message_at_the_end() -> None:
    async with chain() as made:
        await chained(made)
        async with made.client("a") as client, client.producer("q") as producer:
            await producer.send(b"late", delay=5, properties={"x": 1}, priority=7, ttl=100)
            for _ in range(2):
                await producer.send(b"once", duplicate_id="once")
            await producer.flush()
        await trio.sleep(1)
        (once,) = await made.drain("c")
        assert once.body == b"once"
        (late,) = await made.drain("c", quiet=10)
        assert (late.body, late.properties, late.priority) == (b"late", {"x": 1}, 7)
        assert await made.left() == {}


async def test_a_queue_that_is_gone_on_the_way_has_its_messages_routed_once_where_that_is_found() -> None:
    async with chain(own={"b": {"address_settings": {}}}) as made:
        await chained(made)
        await made.kill("b")
        await made.send("a", numbered(10))
        async with made.client("c") as client:
            await client.delete_queue("q")
        await made.start("b")
        await until(lambda: made.known("a").peers()[0].waiting == 0)
        # There, as a message of a client would be, which makes the queue.
        assert await made.left() == {"b/q": 10}


async def test_a_queue_that_is_made_anew_gets_what_was_for_the_one_before_it_where_one_gets_it() -> None:
    async with chain() as made:
        await chained(made)
        await made.kill("b")
        await made.send("a", numbered(10))
        async with made.client("c") as client:
            await client.delete_queue("q")
            await client.create_queue("q")
        await made.start("b")
        assert bodies(await made.drain("c")) == numbered(10)
        assert await made.left() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_a_kill_of_any_node_of_a_chain_under_load_loses_and_doubles_nothing(name: str) -> None:
    async with chain() as made:
        await chained(made)
        for number in range(20):
            await made.send("a", numbered(20, 20 * number))
            if number % 5 == 2:
                await made.kill(name)
                await made.start(name)
        await until(lambda: made.known("a").nodes() == 3)
        got = bodies(await made.drain("c", quiet=2))
        assert Counter(got) == Counter(numbered(400))
        assert await made.left() == {}


async def test_a_store_begun_anew_at_the_end_gets_what_waits_on_the_whole_way_for_its_names() -> None:
    async with chain() as made:
        for queue in ("first", "q"):
            async with made.client("c") as client:
                await client.create_queue(queue)
        await made.known("a").wait_for(queue="q", queues=1, timeout=5)
        await made.kill("c")
        await made.send("a", numbered(10))
        await until(lambda: made.known("b").peers()[0].waiting == 10)
        await made.kill("b")
        await made.send("a", numbered(10, 10))
        del made.disks["c"]
        made.own["c"] = {"node_id": bytes(made.brokers["c"].node_id)}
        await made.start("c")
        async with made.client("c") as client:
            # Its first number was that of another queue.
            await client.create_queue("q")
        await made.start("b")
        assert bodies(await made.drain("c")) == numbered(20)
        assert await made.left() == {}


async def test_where_no_queue_is_left_for_a_message_on_its_way_it_becomes_a_dead_letter_there() -> None:
    settings = {
        "#": AddressSettings(auto_create_queues=False),
        "q": AddressSettings(auto_create_queues=False, dead_letter_address="dead"),
    }
    async with chain(broker={"address_settings": settings}) as made:
        await chained(made)
        await made.kill("b")
        await made.send("a", numbered(10))
        async with made.client("c") as client:
            await client.delete_queue("q")
        await made.start("b")
        await until(lambda: made.known("a").peers()[0].waiting == 0)
        assert await made.left() == {"b/dead": 10}
        await made.kill("b")
        await made.start("b")
        (first, *_) = got = await made.drain("b", "dead")
        assert bodies(got) == numbered(10)
        assert first.origin == ("q", "q", "unrouted")


async def test_a_restart_of_the_first_node_forgets_no_durable_queue_behind_another_one() -> None:
    async with chain() as made:
        await chained(made)
        await made.send("a", numbered(10))
        await made.kill("a", "b")
        await made.start("a")
        await made.send("a", numbered(10, 10))
        await made.start("b")
        assert bodies(await made.drain("c")) == numbered(20)


async def test_in_a_ring_messages_take_the_other_way_when_a_link_is_gone() -> None:
    links = way("abcd", ring=True, both=True)
    ring = mesh("abcd", cluster={"max_hops": 2, "allow_direct_connections_only": True}, others=links)
    async with ring as made, made.client("c") as client, client.consumer("q") as consumer:
        await made.known("a").wait_for(queue="q", consumers=1, exactly=True, timeout=5)
        for lost in "bdb":
            await made.kill(lost)
            await trio.sleep(1)
            await made.known("a").wait_for(queue="q", consumers=1, exactly=True, timeout=5)
            await made.send("a", numbered(5))
            got = []
            while batch := await consumer.receive_many(10, timeout=1):
                got += bodies(batch)
                await consumer.ack(*batch)
            assert got == numbered(5)
            await made.start(lost)
            await trio.sleep(1)
