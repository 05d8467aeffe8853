"""Topics over hops: each subscriber has each message once, by however many ways it comes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from meshq import Message, Queues, Topics
from tests.bridge.kit import numbered
from tests.network.kit import carried, forward, known, publish, quiet, start, subscribed, take, to, until, world


async def test_twelve_messages_cross_once_and_each_of_three_subscribers_has_twelve() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        async with subscribed(made, "a", "b", "b") as three:
            await known(made, "ab", "t", 2)
            assert [one.destination.routing for one in forward(made, "ab").open] == ["multicast"]
            await publish(made, "a", numbered(12))
            for one in three:
                got = await take(one, 12)
                assert sorted(each.body for each in got) == sorted(numbered(12))
            assert {each.path for each in got} == {("a",)}
            assert carried(made, "ab") == 12
        await known(made, "ab", "t", 0)
        await publish(made, "a", numbered(3))
        await quiet(2)
        assert carried(made, "ab") == 12


async def test_without_conduit_two_copies_cross_and_each_subscriber_has_each_message_twice() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, conduit_subscriptions=False)
        async with subscribed(made, "b", "b", "a") as (one, other, here):
            await known(made, "ab", "t", 2)
            await until(lambda: len(forward(made, "ab").open) == 2)
            await publish(made, "a", numbered(12))
            await take(one, 24)
            await take(other, 24)
            await take(here, 12)
            assert carried(made, "ab") == 24


async def test_copies_do_not_multiply_on_the_way() -> None:
    graph = {name: "".join(other for other in "abcd" if other != name) for name in "abcd"}
    async with world() as made:
        for name, others in graph.items():
            links = [to(other, network_ttl=3, conduit_subscriptions=False) for other in others]
            await made.start(name, lambda links=links: links)  # type: ignore[misc]
        async with subscribed(made, "d", "d", "c") as (one, other, third):
            await until(lambda: [len(one.ways[0]) for one in made.brokers["a"].network("to-b").subscriptions()] != [])
            await quiet(3)
            await publish(made, "a", numbered(5))
            # Three subscriptions ask for three copies over each link, and each copy comes to each subscriber once.
            assert [len(await take(each, 15)) for each in (one, other, third)] == [15, 15, 15]


@pytest.mark.parametrize("duplex", [False, True])
async def test_in_a_triangle_a_subscriber_has_each_message_once(duplex: bool) -> None:
    graph = {"c": "", "b": "c", "a": "bc"} if duplex else {"c": "ab", "b": "ca", "a": "bc"}
    async with world() as made:
        for name, others in graph.items():
            links = [to(other, network_ttl=2, duplex=duplex) for other in others]
            await made.start(name, lambda links=links: links)  # type: ignore[misc]
        async with subscribed(made, "a", "b", "c") as three:
            # Each of them knows of the others by both ways.
            await quiet(3)
            for name in "abc":
                await publish(made, name, [b"%s%d" % (name.encode(), number) for number in range(10)])
            for one in three:
                got = await take(one, 30)
                assert len({each.body for each in got}) == 30
                assert all(len(each.path) <= 2 for each in got)


async def test_over_three_connectors_a_subscriber_has_each_message_once() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b", name=f"link0{number}") for number in (1, 2, 3)])
        async with subscribed(made, "b") as (there,):
            links = [made.brokers["a"].network(f"link0{number}") for number in (1, 2, 3)]
            for link in links:
                await link.wait_for(queue="t", consumers=1, timeout=60)
            await publish(made, "a", numbered(30))
            assert len({one.body for one in await take(there, 30)}) == 30
            assert sum(link.bridges()[0].carried for link in links) == 90


async def test_a_topic_goes_over_three_hops_and_ends_with_its_last_subscriber() -> None:
    async with world() as made:
        await start(made, {"d": "", "c": "d", "b": "c", "a": "b"}, network_ttl=3)
        async with subscribed(made, "d", "b") as (far, near):
            await until(lambda: [len(one.ways) for one in made.brokers["a"].network("to-b").subscriptions()] == [1, 1])
            await publish(made, "a", numbered(10))
            assert {one.path for one in await take(far, 10)} == {("a", "b", "c")}
            await take(near, 10)
            assert [carried(made, link) for link in ("ab", "bc", "cd")] == [10, 10, 10]
        for link in ("cd", "bc", "ab"):
            await known(made, link, "t", 0)
        for name in "abcd":
            async with made.here(name) as client:
                assert await client.queues() == [], name


async def test_a_filter_of_a_subscription_travels_without_conduit() -> None:
    messages = [Message(b"", properties={"region": region}) for region in ("us", "emea") * 5]
    for conduit, crossed in ((True, 20), (False, 10)):
        async with world() as made:
            await start(made, {"c": "", "b": "", "a": "bc"}, conduit_subscriptions=conduit)
            async with (
                subscribed(made, "b", filter="region = 'us'") as (us,),
                subscribed(made, "c", filter="region = 'emea'") as (emea,),
            ):
                await known(made, "ab", "t", 1)
                await known(made, "ac", "t", 1)
                await publish(made, "a", messages)
                assert {one.properties["region"] for one in await take(us, 5)} == {"us"}
                assert {one.properties["region"] for one in await take(emea, 5)} == {"emea"}
                # What no subscriber wants ends at the broker to which it was sent.
                assert carried(made, "ab") + carried(made, "ac") == crossed


async def test_entries_for_topics_and_for_queues_are_separate() -> None:
    settings = {
        "dynamically_included": [Queues("TRADE.STOCK.>"), Topics("PRICE.STOCK.>")],
        "excluded": [Queues("TRADE.STOCK.NYSE.*"), Topics("PRICE.STOCK.NYSE.*")],
    }
    topics = ("PRICE.STOCK.NASDAQ.IBM", "PRICE.STOCK.NYSE.IBM", "TRADE.STOCK.X", "NEWS")
    queues = ("TRADE.STOCK.NASDAQ.IBM", "TRADE.STOCK.NYSE.IBM", "PRICE.STOCK.X", "ORDERS")
    async with world() as made, AsyncExitStack() as stack:
        await start(made, {"b": "", "a": "b"}, **settings)
        client = await stack.enter_async_context(made.here("b"))
        for topic in topics:
            await stack.enter_async_context(client.subscribe(topic))
        for queue in queues:
            await stack.enter_async_context(client.consumer(queue))
        await until(lambda: len(forward(made, "ab").open) >= 2)
        await quiet(1)
        passed = [(one.routing, one.address) for one in made.brokers["a"].network("to-b").subscriptions()]
        assert sorted(passed) == [("anycast", queues[0]), ("multicast", topics[0])]
        assert sorted(one.destination for one in forward(made, "ab").open) == sorted(passed)


async def test_everything_is_excluded_for_topics_alone() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, excluded=[Topics(">")])
        async with subscribed(made, "b") as (there,), made.here("b") as client, client.consumer("q") as consumer:
            await known(made, "ab", "q", 1)
            await publish(made, "a", numbered(3))
            await made.send("a", "q", numbered(3))
            await take(consumer, 3)
            await take(there, 0)


async def test_one_connector_for_queues_and_one_for_topics_share_evenly_and_copy_once() -> None:
    def both() -> list[Any]:
        queues = to(
            "b", name="queuesOnly", conduit_subscriptions=False, network_ttl=3, dynamically_included=[Queues(">")]
        )
        return [queues, to("b", name="topicsOnly", network_ttl=3, dynamically_included=[Topics(">")])]

    async with world() as made:
        await made.start("b")
        await made.start("a", both)
        async with AsyncExitStack() as stack:
            three = []
            for name in "abb":
                client = await stack.enter_async_context(made.here(name))
                three.append(await stack.enter_async_context(client.consumer("q")))
            topics = await stack.enter_async_context(subscribed(made, "a", "b", "b"))
            queues_only, topics_only = (made.brokers["a"].network(name) for name in ("queuesOnly", "topicsOnly"))
            await queues_only.wait_for(queue="q", consumers=2, timeout=60)
            await topics_only.wait_for(queue="t", consumers=2, timeout=60)
            await quiet(1)
            await made.send("a", "q", numbered(12))
            assert [len(await take(one, 4)) for one in three] == [4, 4, 4]
            assert (queues_only.bridges()[0].carried, topics_only.bridges()[0].carried) == (8, 0)
            await publish(made, "a", numbered(12))
            assert [len(await take(one, 12)) for one in topics] == [12, 12, 12]
            assert (queues_only.bridges()[0].carried, topics_only.bridges()[0].carried) == (8, 12)


async def test_one_connector_without_conduit_shares_queues_evenly_and_doubles_topics() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, conduit_subscriptions=False)
        async with AsyncExitStack() as stack:
            three = []
            for name in "abb":
                client = await stack.enter_async_context(made.here(name))
                three.append(await stack.enter_async_context(client.consumer("q")))
            topics = await stack.enter_async_context(subscribed(made, "a", "b", "b"))
            await until(lambda: len(forward(made, "ab").open) == 4)
            await quiet(1)
            await made.send("a", "q", numbered(12))
            assert [len(await take(one, 4)) for one in three] == [4, 4, 4]
            await publish(made, "a", numbered(12))
            assert [len(await take(one, count)) for one, count in zip(topics, (12, 24, 24), strict=True)]


async def test_where_the_routing_types_clash_nothing_is_forwarded() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        async with made.here("a") as client:
            await client.create_queue("t")
        async with subscribed(made, "b") as (there,):
            await until(lambda: made.brokers["a"].network("to-b").bridges()[0].last_error is not None)
            assert "is anycast, and stays it" in str(made.brokers["a"].network("to-b").bridges()[0].last_error)
            await made.send("a", "t", numbered(3))
            await take(there, 0)
            assert await made.count("a", "t") == 3


async def test_those_who_share_a_subscription_are_one() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, conduit_subscriptions=False)
        async with subscribed(made, "b", "b", name="s", shared=True) as pair:
            await until(lambda: len(forward(made, "ab").open) == 1)
            assert [one.consumers for one in made.brokers["a"].network("to-b").subscriptions()] == [1]
            await publish(made, "a", numbered(12))
            assert sorted([len(await take(one, 6)) for one in pair]) == [6, 6]


async def test_what_is_excluded_never_passes_and_everything_else_does() -> None:
    excluded = [Queues("TRADE.STOCK.NYSE.*"), Topics("PRICE.STOCK.NYSE.*")]
    async with world() as made, AsyncExitStack() as stack:
        await start(made, {"b": "", "a": "b"}, excluded=excluded)
        client = await stack.enter_async_context(made.here("b"))
        for topic in ("PRICE.STOCK.NYSE.IBM", "PRICE.STOCK.NASDAQ.IBM", "NEWS"):
            await stack.enter_async_context(client.subscribe(topic))
        for queue in ("TRADE.STOCK.NYSE.IBM", "TRADE.STOCK.NASDAQ.IBM", "ORDERS"):
            await stack.enter_async_context(client.consumer(queue))
        await until(lambda: len(forward(made, "ab").open) >= 4)
        await quiet(1)
        passed = {one.address for one in made.brokers["a"].network("to-b").subscriptions()}
        assert passed == {"PRICE.STOCK.NASDAQ.IBM", "NEWS", "TRADE.STOCK.NASDAQ.IBM", "ORDERS"}


async def test_both_brokers_have_a_copy_of_each_and_drop_and_count_what_their_subscribers_do_not_want() -> None:
    messages = [Message(b"", properties={"region": region}) for region in ("us", "emea") * 5]
    async with world() as made:
        await start(made, {"c": "", "b": "", "a": "bc"})
        async with (
            subscribed(made, "b", filter="region = 'us'") as (us,),
            subscribed(made, "c", filter="region = 'emea'") as (emea,),
        ):
            async with subscribed(made, "c", name="kept", durable=True):
                await known(made, "ac", "t", 2)
            await known(made, "ab", "t", 1)
            await publish(made, "a", messages)
            assert {one.properties["region"] for one in await take(us, 5)} == {"us"}
            assert {one.properties["region"] for one in await take(emea, 5)} == {"emea"}
            assert (carried(made, "ab"), carried(made, "ac")) == (10, 10)
            assert made.brokers["b"].statistics().unrouted == 5
            # A durable subscription has everything, also while nobody consumes from it.
            assert made.brokers["c"].statistics().unrouted == 0
            assert await made.count("c", "t::kept") == 10


def test_the_how_to_page_names_what_helps_where_filters_meet_topics() -> None:
    page = Path("docs/how-to/networks-of-brokers.md").read_text(encoding="utf-8")
    assert "each subscriber has all these copies" in page
    assert "put the subscribers that want the same behind one broker" in page


@pytest.mark.parametrize("conduit", [True, False])
async def test_what_is_statically_included_crosses_without_any_subscription_and_once_with_one(conduit: bool) -> None:
    static = [Topics("t"), Queues("q")]
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, statically_included=static, conduit_subscriptions=conduit)
        await until(lambda: len(forward(made, "ab").open) == 2)
        await publish(made, "a", numbered(3))
        await made.send("a", "q", numbered(3))
        await until(lambda: carried(made, "ab") == 6)
        assert [await made.count(name, "q") for name in "ab"] == [0, 3]
        # The topic is made there as a topic, and what nobody there wants is dropped and counted.
        assert made.brokers["b"].statistics().unrouted == 3
        async with subscribed(made, "b", "b") as (one, other), subscribed(made, "b", filter="x = 1"):
            await quiet(2)
            await publish(made, "a", numbered(5))
            await take(one, 5)
            await take(other, 5)
            assert carried(made, "ab") == 11


async def test_a_static_topic_is_not_made_where_its_name_is_a_queue() -> None:
    async with world() as made:
        await made.start("b")
        await made.send("b", "t", numbered(1))
        await start(made, {"a": "b"}, statically_included=[Topics("t")])
        await until(lambda: len(forward(made, "ab").open) == 1)
        await publish(made, "a", numbered(3))
        await until(lambda: made.brokers["a"].network("to-b").bridges()[0].last_error is not None)
        assert "is anycast, and stays it" in str(made.brokers["a"].network("to-b").bridges()[0].last_error)
        assert await made.count("b", "t") == 1


async def test_the_queue_of_a_topic_is_not_taken_for_the_queue_that_another_broker_asks_for() -> None:
    async with world() as made:
        await made.start("b", list)
        await made.start("a", lambda: [to("b", excluded=[Topics("t")])])
        async with made.here("a") as a, made.here("b") as b:
            await a.create_address("t", routing="multicast")
            await a.create_queue("t", address="t", routing="multicast")
            await a.send_many("t", numbered(10))
            async with b.consumer("t") as consumer:
                assert await consumer.receive_many(10, timeout=10) == []
            assert (await a.queue("t")).ready == 10
