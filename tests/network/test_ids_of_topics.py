"""The ids by which brokers of a network know messages of topics again."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from meshq import AddressSettings, ClusterConnection, Consumer, Delivery, Message, UsageError, abc
from meshq.address import Target
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.catalog._router import Address
from meshq.broker.ingress._network_copies import Copies, from_node, not_had, note_had
from meshq.broker.log._duplicates import IdChunk
from meshq.broker.queue._delivery_options import DeliveryOptions, FormerCount
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.records import SettledRow
from meshq.ids import NETWORK_MARK
from meshq.message import MessageOrigin
from meshq.wire import KIND_ID, Envelope, encode_run
from tests.bridge.kit import URL, numbered
from tests.broker.kit import make_house
from tests.network.kit import carried, known, publish, start, subscribed, take, to, until, world


async def test_dead_letters_of_two_queues_cross_both_and_go_on_under_one_id() -> None:
    dead = {"#": AddressSettings(max_delivery_attempts=1, dead_letter_address="dead")}
    async with world() as made:
        for name, others in {"d": "", "c": "d", "b": "cd", "a": "b"}.items():
            links = [to(other, network_ttl=3) for other in others]
            await made.start(name, lambda links=links: links, address_settings=dead)  # type: ignore[misc]
        async with subscribed(made, "d", topic="dead") as (letters,), made.here("b") as b, AsyncExitStack() as stack:
            await b.create_address("dead", routing="multicast")
            await until(lambda: len(made.brokers["b"].network("to-c").subscriptions()) == 1)
            await known(made, "bd", "dead", 1)
            # Also messages that have come over a link, and have an id already.
            both = [await stack.enter_async_context(b.subscribe("t", name=name)) for name in ("s1", "s2")]
            await known(made, "ab", "t", 2)
            for name in "ab":
                await publish(made, name, numbered(3))
            for one in both:
                got = [each for _ in range(6) if (each := await one.receive(timeout=5)) is not None]
                await one.reject(*got)
            got = await take(letters, 12)
            assert len({one.body for one in got}) == 3


async def test_a_divert_does_not_double_what_comes_to_a_queue_of_one_name_on_two_nodes() -> None:
    async with world() as made:
        for name, other in ("xy", "yx"):
            await made.start(name, lambda other=other: clustered(other))  # type: ignore[misc]
            async with made.here(name) as client:
                await client.create_address("t", routing="multicast")
                await client.create_queue("aside")
                await client.create_divert("d", address="t", forwarding_address="aside")
        await made.start("a", lambda: [to("x"), to("y")])
        async with subscribed(made, "x", "y", name="s", durable=True) as both:
            for name in "xy":
                await made.brokers[name].cluster("mesh").wait_for(nodes=2, queues=2, address="t", timeout=30)
                await known(made, f"a{name}", "t", 1)
            await publish(made, "a", numbered(20))
            got = [one.body for each in both for one in await all_of(each)]
            assert sorted(got) == sorted(numbered(20))


async def all_of(consumer: Consumer) -> list[Delivery]:
    """What a consumer gets until nothing more comes."""
    found: list[Delivery] = []
    while more := await consumer.receive_many(100, timeout=5):
        found += more
    return found


async def test_a_redriven_message_does_not_come_again_where_it_was() -> None:
    dead = {"#": AddressSettings(max_delivery_attempts=1, dead_letter_address="dead")}
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b")], address_settings=dead)
        async with subscribed(made, "b") as (there,), made.here("a") as a:
            await known(made, "ab", "t", 1)
            async with a.subscribe("t", name="s", durable=True) as here:
                await publish(made, "a", numbered(3))
                await take(there, 3)
                await here.reject(*[each for _ in range(3) if (each := await here.receive(timeout=5)) is not None])
            await until(lambda: made.brokers["a"].statistics().consumers == 1)
            await a.delete_queue("t::s")
            assert await a.redrive("dead") == 3
            await take(there, 0)


@pytest.mark.parametrize("transacted", [False, True])
async def test_nobody_sends_under_the_id_of_a_message_that_comes_over_a_link(transacted: bool) -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "c", "a": "b"}, network_ttl=2)
        async with subscribed(made, "c") as (far,):
            await known(made, "ab", "t", 1)
            async with subscribed(made, "b") as (near,):
                made.network.delay("b", "c", 1.0, 1.0)
                await publish(made, "a", numbered(1))
                seen = await near.receive(timeout=5)
                assert seen is not None
                network_id = seen._run.view.duplicate_id(seen._index)
                assert network_id.startswith(NETWORK_MARK) and seen.duplicate_id is None
                async with made.dial("c") as intruder:
                    with pytest.raises(UsageError, match="is one of a network of brokers"):
                        if transacted:
                            async with intruder.transaction() as transaction:
                                await transaction.send("t", Message(b"bad", duplicate_id=network_id))
                        else:
                            await intruder.send("t", Message(b"bad", duplicate_id=network_id))
            assert [one.body for one in await take(far, 1)] == numbered(1)


def clustered(*others: str, links: str = "") -> list[abc.Service]:
    """The services of a node of a cluster with these other nodes, and with connectors to these brokers."""
    urls = [URL.format(other) for other in others]
    about: dict[str, Any] = {"user": "u", "password": "p", "retry_interval": 0.02, "max_retry_interval": 0.05}
    return [ClusterConnection("mesh", static_connectors=urls, **about), *map(to, links)]


async def test_a_message_of_a_topic_leaves_a_cluster_under_one_id_by_all_its_nodes() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("x", lambda: clustered("y", links="b"))
        await made.start("y", lambda: clustered("x", links="b"))
        async with subscribed(made, "b") as (there,):
            for name in "xy":
                await known(made, f"{name}b", "t", 1)
                await made.brokers[name].cluster("mesh").wait_for(nodes=2, queues=2, address="t", timeout=30)
            await publish(made, "x", numbered(10))
            assert sorted(one.body for one in await take(there, 10)) == sorted(numbered(10))
            assert [carried(made, link) for link in ("xb", "yb")] == [10, 10]


@pytest.mark.parametrize("slow", ["", "x", "y"])
async def test_what_comes_to_two_nodes_of_a_cluster_is_with_each_subscriber_once(
    slow: str,
) -> None:
    async with world() as made:
        await made.start("x", lambda: clustered("y"))
        await made.start("y", lambda: clustered("x"))
        await made.start("a", lambda: [to("x"), to("y")])
        async with subscribed(made, "x", "y", "y") as three:
            for name in "xy":
                await known(made, f"a{name}", "t", 1)
                await made.brokers[name].cluster("mesh").wait_for(nodes=2, queues=3, address="t", timeout=30)
            if slow:
                # The other node deals what has come to it before this one has it.
                made.network.delay("a", slow, 1.0, 1.0)
            await publish(made, "a", numbered(10))
            for one in three:
                assert sorted(each.body for each in await take(one, 10)) == sorted(numbered(10))
            assert [carried(made, f"a{name}") for name in "xy"] == [10, 10]
            assert [made.brokers[name].statistics().unrouted for name in "xy"] == [0, 0]
            assert sum(made.brokers[name].statistics().duplicates for name in "xy") > 0
            # A queue of which the other node does not know yet has what comes to its own node.
            async with subscribed(made, "y", name="new") as (new,):
                await publish(made, "a", [b"later"])
                assert [one.body for one in await take(new, 1)] == [b"later"]


async def test_what_two_nodes_deal_to_each_other_is_lost_at_neither_and_comes_to_one_queue_of_a_name() -> None:
    async with world() as made:
        await made.start("x", lambda: clustered("y"))
        await made.start("y", lambda: clustered("x"))
        await made.start("a", lambda: [to("x"), to("y")])
        async with subscribed(made, "x", "y", name="s", durable=True) as both:
            for name in "xy":
                await made.brokers[name].cluster("mesh").wait_for(nodes=2, queues=2, address="t", timeout=30)
                await known(made, f"a{name}", "t", 1)
            await publish(made, "a", numbered(20))
            got: list[bytes] = []
            for one in both:
                while batch := await one.receive_many(100, timeout=5):
                    got += [each.body for each in batch]
                    await one.ack(*batch, confirm=True)
            assert sorted(got) == sorted(numbered(20))
        # Where nobody consumes it waits at one of them, too, once both nodes know that.
        await trio.sleep(5)
        await publish(made, "a", numbered(20, 20))
        await trio.sleep(10)
        waiting = [await made.count(name, "t::s") for name in "xy"]
        assert sum(waiting) == 20 and all(waiting)


async def test_a_node_that_leaves_hands_over_what_the_other_one_has_seen_and_not_kept() -> None:
    async with world() as made:
        await made.start("x", lambda: clustered("y"))
        await made.start("y", lambda: clustered("x"))
        await made.start("a", lambda: [to("x")])
        for name in "xy":
            async with subscribed(made, name, name="s", durable=True):
                pass
        for name in "xy":
            await made.brokers[name].cluster("mesh").wait_for(nodes=2, queues=2, address="t", timeout=30)
        await known(made, "ax", "t", 1)
        async with made.here("y") as client, client.consumer("t::s", window=1):
            await trio.sleep(1)
            await publish(made, "a", numbered(10))
            await trio.sleep(5)
        assert [await made.count(name, "t::s") for name in "xy"] == [0, 10]
        async with made.brokers["y"].drain():
            pass
        async with made.here("x") as client, client.consumer("t::s") as here:
            assert sorted(one.body for one in await take(here, 10)) == sorted(numbered(10))


def row_of(address: Address, number: int) -> StoredRun:
    """A message that came through a network, with the id of this number."""
    content = encode_run([b"x"], [Envelope(KIND_ID, NETWORK_MARK + b"%d" % number, b"", b"")])
    return StoredRun(address.name, content, durable=True, producer=b"p" * 16, number=1, stamp=0)


def test_only_what_a_queue_has_had_is_a_copy_there_until_it_moves_away() -> None:
    core = make_house().core
    address, _ = core.definitions.address_of_moved(Target("t", None))
    address.routing = "multicast"
    queue, other = address.queues[0], Queue(99, "other", "t", durable=True)
    run, shares = row_of(address, 1), [Share(queue, range(1), ()), Share(other, range(1), ())]
    # That the address knows the id says nothing of a queue.
    address.duplicates.add(IdChunk(1, [NETWORK_MARK + b"1"]))
    assert from_node(run, address, shares) == shares
    note_had(run, address, shares[:1])
    assert from_node(run, address, shares) == shares[1:] == not_had(run, address, shares)
    # What was moved may be the only one.
    run.options = DeliveryOptions(0, origin=MessageOrigin("t", "t", "moved"))
    assert from_node(run, address, shares) == shares
    run.options = DeliveryOptions(0, former={0: FormerCount(1, 0)})
    assert from_node(run, address, shares) == shares
    run.options = None
    Copies(core.router).forget_moved(run, [SettledRow(queue.number, 1, 0, 1, 1)])
    assert from_node(run, address, shares) == shares
    # No more is remembered than of ids.
    address.duplicates.capacity = 2
    for number in range(5):
        note_had(row_of(address, number), address, shares)
    assert list(address.had) == [NETWORK_MARK + b"3", NETWORK_MARK + b"4"]
