"""Messages without a consumer where they are go to nodes that have one: each once, in order, none from under one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Delivery, Message, limits
from meshq.broker.ingress._redistribution import AHEAD_MAX
from tests.cluster.hosts import hosts
from tests.cluster.kit import Mesh, bodies, mesh, until

SETTLED_S = 2.0


def settings_of(delay_s: float | None) -> dict[str, Any]:
    """The settings of each broker."""
    return {"queues": ["q"], "address_settings": {"q": AddressSettings(redistribution_delay=delay_s)}}


@asynccontextmanager
async def redistributing(names: str = "ab", *, delay_s: float | None = 0.0, **settings: Any) -> AsyncIterator[Mesh]:
    """Nodes that know each other, each with the queue ``q``, whose messages move after the delay."""
    async with mesh(names, root="simulated", **{"broker": settings_of(delay_s), **settings}) as nodes:
        await nodes.joined()
        yield nodes


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def moved(nodes: Mesh, name: str) -> int:
    """The messages of ``q`` that have left a node."""
    return nodes.brokers[name]._node.core.router.queues["q"].counts.removed["redistributed"]


async def taken(nodes: Mesh, name: str, count: int, **options: Any) -> list[Delivery]:
    """Receive so many messages of ``q`` at a node, and wait for more in vain."""
    got: list[Delivery] = []
    async with nodes.client(name) as client, client.consumer("q", **options) as consumer:
        with trio.move_on_after(30):
            while len(got) < count:
                batch = await consumer.receive_many(1_000, timeout=1)
                got += batch
                if batch:
                    await consumer.ack(*batch, confirm=True)
        got += await consumer.receive_many(1, timeout=SETTLED_S)
    return got


async def test_what_lost_its_consumer_goes_in_order_to_the_node_that_has_one_and_keeps_what_it_was() -> None:
    async with redistributing() as nodes:
        await nodes.send("b", numbered(5_000))
        async with nodes.client("b") as client:
            await client.send("q", Message(b"last", priority=4, ttl=900.0, properties={"colour": "red"}))
        found = await taken(nodes, "a", 5_001)
        assert bodies(found) == [*numbered(5_000), b"last"]
        numbers = [one.message_id.number for one in found[:5_000]]
        assert numbers == list(range(numbers[0], numbers[0] + 5_000))
        assert found[-1].properties == {"colour": "red"} and found[-1].origin is None
        assert not any(one.redelivered for one in found)
        assert await nodes.left() == {}


@pytest.mark.parametrize("count", [1, 300])
async def test_a_consumer_here_keeps_everything_whatever_its_filter(count: int) -> None:
    async with redistributing() as nodes, nodes.client("b") as client:
        async with client.consumer("q", filter="colour = 'green'"):
            await nodes.send("b", numbered(count))
            assert await taken(nodes, "a", 0) == []
            assert await nodes.left() == {"b/q": count}
        assert bodies(await taken(nodes, "a", count)) == numbered(count)


async def test_a_consumer_that_comes_in_the_middle_gets_all_that_has_not_moved_in_order() -> None:
    async with redistributing() as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await nodes.send("b", numbered(9_000))
        async with there.consumer("q", window=10):
            await until(lambda: moved(nodes, "b") > 500)
            async with here.consumer("q", window=10_000) as consumer:
                before = moved(nodes, "b")
                assert 500 < before < 9_000
                got: list[Delivery] = []
                while batch := await consumer.receive_many(1_000, timeout=SETTLED_S):
                    got += batch
                assert moved(nodes, "b") == before
                assert bodies(got) == numbered(9_000 - before, before)


async def test_messages_move_after_the_delay_and_a_consumer_that_comes_and_goes_begins_it_anew() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await nodes.send("b", numbered(10))
        async with there.consumer("q") as consumer:
            await trio.sleep(3)
            async with here.consumer("q", filter="colour = 'green'"):
                await trio.sleep(1)
            began = trio.current_time()
            assert bodies(await consumer.receive_many(10, timeout=20)) == numbered(10)
            assert 5.0 <= trio.current_time() - began < 6.0


async def test_what_nobody_there_wants_stays_and_holds_up_nothing_behind_it() -> None:
    async with redistributing() as nodes, nodes.client("b") as here:
        sent = [Message(b"%d" % number, properties={"odd": number % 2}) for number in range(600)]
        await here.send_many("q", sent)
        found = await taken(nodes, "a", 300, filter="odd = 1")
        assert bodies(found) == [b"%d" % number for number in range(1, 600, 2)]
        assert await nodes.left() == {"b/q": 300}


async def test_two_nodes_with_a_consumer_get_half_of_it_each() -> None:
    async with redistributing("abc") as nodes, nodes.client("a") as one, nodes.client("b") as other:
        await nodes.send("c", numbered(10))
        async with (
            nodes.client("c") as here,
            here.consumer("q", filter="colour = 'green'") as last,
            one.consumer("q") as first,
            other.consumer("q") as second,
        ):
            await nodes.joined(queue="q", consumers=3)
            assert moved(nodes, "c") == 0
            await last.close()
            got = [await consumer.receive_many(10, timeout=SETTLED_S) for consumer in (first, second)]
        assert [len(batch) for batch in got] == [5, 5]
        assert sorted(bodies(got[0] + got[1])) == numbered(10)


@pytest.mark.parametrize(("mode", "count"), [("off", 0), ("strict", 0), ("off_with_redistribution", 10)])
async def test_only_links_on_demand_or_for_redistribution_carry_it(mode: str, count: int) -> None:
    async with redistributing(mode=mode) as nodes, nodes.client("b") as here:
        await here.pause_queue("q")
        await nodes.send("b", numbered(10 if mode != "strict" else 20))
        await taken(nodes, "a", 10 if mode == "strict" else 0)
        assert moved(nodes, "b") == 0
        await here.resume_queue("q")
        await taken(nodes, "a", count)
        assert moved(nodes, "b") == count


async def _with_a_history(nodes: Mesh) -> None:
    """Have three messages on a node, of which the first was delivered and one more has an origin."""
    async with nodes.client("b") as here:
        await here.create_queue("elsewhere")
        await nodes.send("b", numbered(3))
        async with here.consumer("q", window=1) as consumer:
            await consumer.nack(*await consumer.receive_many(1))
        await here.send("elsewhere", b"moved before")
        await here.move_messages("elsewhere", "q")


async def test_what_was_delivered_here_or_has_an_origin_goes_in_its_place_with_what_is_known_of_it() -> None:
    async with redistributing() as nodes:
        await _with_a_history(nodes)
        found = await taken(nodes, "a", 4)
        assert bodies(found) == [*numbered(3), b"moved before"]
        assert [(one.delivery_count, one.redelivered) for one in found] == [(2, True), *[(1, False)] * 3]
        assert [one.origin.queue if one.origin else "" for one in found] == ["", "", "", "elsewhere"]
        assert moved(nodes, "b") == 4


async def test_what_subscriptions_have_rejected_goes_to_who_takes_dead_letters_elsewhere() -> None:
    # Rejected by a subscription with a name, and by one without, whose names both have that of their address in them.
    async with redistributing() as nodes:
        async with nodes.client("b") as here:
            await here.set_address_settings("news", AddressSettings(dead_letter_address="q"))
            for name in ("archive", None):
                async with here.subscribe("news", name=name) as consumer:
                    await here.send("news", b"x")
                    delivery = await consumer.receive(timeout=5)
                    assert delivery is not None
                    await delivery.reject()
                    await here.flush()
        found = await taken(nodes, "a", 2)
        assert bodies(found) == [b"x", b"x"]
        assert [one.origin.address if one.origin else "" for one in found] == ["news", "news"]
        assert found[0].origin is not None and found[0].origin.queue == "news::archive"


async def test_what_the_consumer_that_left_held_goes_too() -> None:
    async with redistributing() as nodes:
        await nodes.send("b", numbered(1_000))
        async with nodes.client("b") as here, here.consumer("q", window=600) as consumer:
            assert await consumer.receive_many(600) != []
        found = await taken(nodes, "a", 1_000)
        assert bodies(found) == numbered(1_000)
        assert await nodes.left() == {}


async def test_what_an_older_node_does_not_understand_stays_and_the_rest_goes_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.broker.session._peering.LINK_FEATURES", "due queue ids")
    async with redistributing() as nodes:
        await _with_a_history(nodes)
        assert bodies(await taken(nodes, "a", 2)) == numbered(2, 1)
        assert await nodes.left() == {"b/q": 2}


async def test_a_message_that_was_delivered_goes_to_the_node_that_understands_its_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = "meshq.broker.session._peering.LINK_FEATURES"
    async with redistributing("abc") as nodes:
        await _with_a_history(nodes)
        everything = __import__("meshq.broker.session._peering", fromlist=["LINK_FEATURES"]).LINK_FEATURES
        await nodes.stop("c")
        await nodes.ended("c")
        monkeypatch.setattr(shared, "due queue ids")
        await nodes.start("c")
        await nodes.joined()
        monkeypatch.setattr(shared, everything)
        async with nodes.client("c") as there, there.consumer("q") as older:
            # The consumer at the newer node comes second, and gets what can't go to the older one.
            plain = await older.receive_many(10, timeout=5)
            await older.ack(*plain, confirm=True)
            assert bodies(plain) == numbered(2, 1)
            found = await taken(nodes, "a", 2)
        assert bodies(found) == [b"0", b"moved before"] and found[0].redelivered


async def test_messages_stay_if_the_filter_of_the_queue_there_is_not_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshq.node._local_broker._filters", lambda texts: ())
    settings = {"address_settings": {"some": AddressSettings(redistribution_delay=0.0)}}
    async with redistributing(broker=settings) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await here.create_queue("some")
        await here.send("some", Message(b"even", properties={"odd": 0}))
        await there.create_queue("some", filter="odd = 1")
        async with there.consumer("some"):
            await nodes.known("b").wait_for(queue="some", consumers=1, timeout=5)
            await trio.sleep(SETTLED_S)
        assert await nodes.left() == {"b/some": 1}


async def test_durable_messages_stay_if_the_queue_there_is_not_durable_and_the_others_go() -> None:
    settings = {"address_settings": {"some": AddressSettings(redistribution_delay=0.0)}}
    async with redistributing(broker=settings) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await here.create_queue("some")
        await here.send("some", b"durable")
        await here.send("some", Message(b"not durable", durable=False))
        await there.create_queue("some", durable=False)
        async with there.consumer("some") as consumer:
            found = await consumer.receive(timeout=5)
            assert found is not None and found.body == b"not durable"
            assert await consumer.receive(timeout=SETTLED_S) is None
            await found.ack()
        assert await nodes.left() == {"b/some": 1}


async def test_messages_of_a_subscription_stay_with_it() -> None:
    settings = {"address_settings": {"topic": AddressSettings(redistribution_delay=0.0)}}
    async with redistributing(broker=settings) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await here.create_queue("sub", address="topic", routing="multicast")
        await here.send("topic", b"a copy")
        await there.create_queue("sub", address="topic", routing="multicast")
        async with there.consumer("topic::sub"):
            await nodes.known("b").wait_for(queue="sub", consumers=1, timeout=5)
            await trio.sleep(SETTLED_S)
        assert await nodes.left() == {"b/sub": 1}


async def test_only_so_much_goes_ahead_to_a_node_that_does_not_answer_and_the_rest_when_it_does() -> None:
    cluster = {"connection_ttl": 600.0, "check_period": 100.0}
    async with hosts("ab", cluster=cluster, broker=settings_of(0.0)) as nodes:
        await nodes.joined()
        async with nodes.client("b") as here, here.consumer("q", filter="colour = 'green'") as last:
            await nodes.send("b", numbered(5_000))
            got: list[Delivery] = []
            await nodes.nursery.start(nodes.serve_queue, "a", got)
            await nodes.known("b").wait_for(queue="q", consumers=2, timeout=5)
            nodes.network.partition(["a"], ["b"])
            await last.close()
            await trio.sleep(30)
            assert AHEAD_MAX <= moved(nodes, "b") < AHEAD_MAX + limits.RUN_MESSAGES_MAX
            assert got == []
            nodes.network.heal()
            await until(lambda: len(got) == 5_000)
        assert bodies(got) == numbered(5_000)


async def test_what_expires_on_its_way_makes_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.broker.ingress._redistribution.AHEAD_MAX", 4)
    for module in ("_redistributor", "_redistribution_plan"):
        monkeypatch.setattr(f"meshq.cluster.{module}.STEP", 1)
    # So little memory that a link has not all of these on its way.
    broker = {**settings_of(0.0), "memory_limit": 1 << 20}
    async with hosts("ab", cluster={"connection_ttl": 600.0, "check_period": 100.0}, broker=broker) as nodes:
        await nodes.joined()
        async with nodes.client("b") as here, here.consumer("q", filter="colour = 'green'") as last:
            for number in range(8):
                await here.send("q", Message(b"x" * 40_000, ttl=30.0 if number < 4 else None))
            await nodes.nursery.start(nodes.serve_queue, "a", [])
            await nodes.known("b").wait_for(queue="q", consumers=2, timeout=5)
            nodes.network.partition(["a"], ["b"])
            await last.close()
            await trio.sleep(10)
            assert moved(nodes, "b") == 4
            await trio.sleep(30)
            assert moved(nodes, "b") > 4
