"""What was sent to a topic comes to the queues that stay at other brokers, also while nobody consumes from them."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import trio

from meshq import AddressSettings, Message
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.client import NetworkQueue
from meshq.network import _direction
from tests.bridge.kit import numbered
from tests.broker.queues import make_queue, put
from tests.network.kit import carried, forward, known, publish, start, subscribed, take, to, until, world


async def test_a_durable_subscription_is_demand_while_nobody_consumes_from_it() -> None:
    async with world() as made:
        await start(made, {"c": "", "b": "c", "a": "b"}, network_ttl=2)
        async with subscribed(made, "c", name="kept", durable=True):
            await known(made, "ab", "t", 1)
        await publish(made, "a", numbered(10))
        await until(lambda: carried(made, "bc") == 10)
        async with subscribed(made, "c", name="kept", durable=True) as (back,):
            await take(back, 10)
        async with made.here("c") as client:
            await client.delete_queue("t::kept")
        await known(made, "ab", "t", 0)


async def test_a_durable_subscriber_that_comes_and_goes_lacks_nothing() -> None:
    got: set[bytes] = set()
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, prefetch=10)
        made.network.delay("a", "b", 0.05, 0.1)
        for number in range(5):
            async with subscribed(made, "b", name="kept", durable=True) as (there,):
                await known(made, "ab", "t", 1)
                await publish(made, "a", [b"%d" % (100 * number + one) for one in range(100)])
                batch = await there.receive_many(30, timeout=60)
                got.update(one.body for one in batch)
                await there.ack(*batch, confirm=True)
        async with subscribed(made, "b", name="kept", durable=True) as (there,):
            got.update(one.body for one in await take(there, 500 - len(got)))
    assert got == {b"%d" % number for number in range(500)}


async def test_what_waits_for_another_broker_when_its_last_consumer_goes_is_forwarded_first() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, prefetch=10)
        async with made.here("b") as client:
            await client.create_queue("kept", address="t", routing="multicast", durable=False)
            async with client.consumer("kept", window=1):
                await known(made, "ab", "t", 1)
                made.network.delay("a", "b", 0.05, 0.1)
                await publish(made, "a", numbered(200))
        await known(made, "ab", "t", 0)
        assert (carried(made, "ab"), await made.count("b", "kept")) == (200, 200)
        await publish(made, "a", numbered(3))
        async with made.here("a") as client:
            assert await client.queues() == []


async def test_a_network_consumer_that_is_wanted_again_while_it_leaves_stays() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"}, prefetch=10)
        made.network.delay("a", "b", 0.05, 0.1)
        async with made.here("b") as client:
            await client.create_queue("kept", address="t", routing="multicast", durable=False)
            async with client.consumer("kept", window=1):
                await known(made, "ab", "t", 1)
                await publish(made, "a", numbered(200))
            (running,) = forward(made, "ab")._running.values()
            await until(lambda: running.leaving)
            async with client.consumer("kept", window=1):
                await until(lambda: not running.leaving)
                await publish(made, "a", [b"later-%d" % number for number in range(100)])
                await until(lambda: carried(made, "ab") == 300)
        assert await made.count("b", "kept") == 300


def queue_of(*priorities: int) -> Queue:
    """A queue with a message of each of these priorities."""
    queue = make_queue()
    for priority in priorities:
        put(queue, priority=priority)
    return queue


def test_all_that_waited_has_gone_when_no_older_message_is_there_whatever_came_meanwhile() -> None:
    leaving, queue = _direction._Forwarding(Mock(routes=())), queue_of(4, 4)

    def drained() -> bool:
        return leaving.is_drained(NetworkQueue("n", queue.oldest, queue.last))

    assert not drained()
    # More urgent ones come, and go first: those that waited still do.
    spans = [RowSpan(put(queue, priority=9), 0, 1, 1) for _ in range(3)]
    for one in spans:
        queue.remove(one, "acknowledged")
    assert not drained()
    old = queue.lists.main.head
    assert old is not None and old.next is not None
    for view in (old, old.next):
        assert not drained()
        queue.remove(RowSpan(view, 0, 1, 1), "acknowledged")
    put(queue)
    assert drained()


def test_what_has_a_number_and_is_not_visible_yet_waits_too() -> None:
    leaving, queue = _direction._Forwarding(Mock(routes=())), queue_of()
    queue.number_rows(5)
    assert (queue.oldest, queue.last) == (1, 5)
    assert not leaving.is_drained(NetworkQueue("n", queue.oldest, queue.last))


async def test_what_waits_in_a_paused_queue_is_forwarded_when_that_goes_on() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        async with made.here("a") as a, made.here("b") as b:
            await b.create_queue("kept", address="t", routing="multicast", durable=False)
            async with b.consumer("kept", window=1):
                await known(made, "ab", "t", 1)
                (queue,) = await a.queues()
                await a.pause_queue(queue)
                await publish(made, "a", numbered(5))
            await trio.sleep(5)
            assert carried(made, "ab") == 0
            await a.resume_queue(queue)
            await until(lambda: carried(made, "ab") == 5)
            await known(made, "ab", "t", 0)


async def test_demand_that_returns_while_a_network_consumer_closes_has_another_one() -> None:
    async with world() as made:
        await start(made, {"b": "", "a": "b"})
        direction = forward(made, "ab")
        async with subscribed(made, "b"):
            await known(made, "ab", "t", 1)
            (closing,) = direction._running.values()
        await until(lambda: closing.leaving)
        # It has seen that nothing waits any more, and does not forward again.
        closing.ended = True
        async with subscribed(made, "b") as (there,):
            await until(lambda: len(direction.open) == 1 and closing not in direction._running.values())
            await publish(made, "a", numbered(5))
            await take(there, 5)


async def test_a_message_that_several_filters_accept_comes_once_by_however_many_ways() -> None:
    filters = ("x > 0", "x > 1", "x > 2")
    async with world() as made:
        for name, others in {"c": "ab", "b": "ca", "a": "bc"}.items():
            links = [to(other, network_ttl=2, conduit_subscriptions=False) for other in others]
            await made.start(name, lambda links=links: links)  # type: ignore[misc]
        async with (
            subscribed(made, "b", filter=filters[0]) as (one,),
            subscribed(made, "b", filter=filters[1]) as (other,),
            subscribed(made, "c", filter=filters[2]) as (third,),
        ):
            await until(lambda: len(forward(made, "ab").open) == len(forward(made, "ac").open) == 3)
            await until(lambda: len(forward(made, "cb").open) == len(forward(made, "bc").open) + 1 == 2)
            await publish(made, "a", [Message(b"", properties={"x": 3})] * 5)
            assert [len(await take(each, 5)) for each in (one, other, third)] == [5, 5, 5]


async def test_a_copy_that_has_gone_as_far_as_it_may_does_not_keep_a_later_one_from_going_on() -> None:
    async with world() as made:
        for name, others in {"d": "", "c": "d", "b": "c", "a": "bc"}.items():
            await made.start(name, lambda others=others: [to(other, network_ttl=2) for other in others])  # type: ignore[misc]
        async with subscribed(made, "d", "c") as (far, near):
            await known(made, "ac", "t", 2)
            await known(made, "ab", "t", 1)
            await known(made, "bc", "t", 2)
            made.network.delay("a", "c", 0.5, 0.5)
            await publish(made, "a", numbered(10))
            assert [one.path for one in await take(near, 10)] == [("a", "b")] * 10
            got = await take(far, 10)
            assert [one.path for one in got] == [("a", "c")] * 10
            assert sorted(one.body for one in got) == sorted(numbered(10))
            assert carried(made, "cd") == 10
            # The next are judged anew: by the shorter way first they go on at once, and not again.
            made.network.delay("a", "c", 0.0, 0.0)
            made.network.delay("a", "b", 0.5, 0.5)
            await publish(made, "a", numbered(10))
            await take(far, 10)
            await take(near, 10)
            assert carried(made, "cd") == 20


async def test_what_waits_for_a_broker_that_refuses_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_direction, "WAITING_MAX", 100)
    async with world() as made:
        await made.start("b", address_settings={"#": AddressSettings(max_size_messages=5, full_policy="fail")})
        await made.start("a", lambda: [to("b")])
        async with made.here("b") as holding, holding.subscribe("t", window=1) as there:
            await known(made, "ab", "t", 1)
            link = made.brokers["a"].network("to-b")
            for _ in range(10):
                await publish(made, "a", numbered(50))
                await trio.sleep(0.2)
            await until(lambda: link.bridges()[0].rejected > 100)
            await until(lambda: len(forward(made, "ab").open) == 1)
            async with made.here("a") as client:
                (queue,) = await client.queues()
                assert (await client.queue(queue)).ready <= 150
                assert "dropped, more than 100" in str(link.bridges()[0].last_error)
            # What comes when there is room again goes on.
            while batch := await there.receive_many(100, timeout=5):
                await there.ack(*batch, confirm=True)
            await publish(made, "a", [b"later"])
            assert [one.body for one in await take(there, 1)] == [b"later"]


@pytest.mark.parametrize("kept", [False, True])
async def test_what_nobody_wants_any_more_and_is_refused_four_times_is_dropped_and_counted(*, kept: bool) -> None:
    async with world() as made:
        await made.start("b", address_settings={"#": AddressSettings(max_size_messages=5, full_policy="fail")})
        await made.start("a", lambda: [to("b", prefetch=10)])
        link = made.brokers["a"].network("to-b")
        async with made.here("b") as there, made.here("a") as here:
            # It is full, and no demand.
            await there.create_queue("full", address="t", routing="multicast", durable=False)
            async with there.subscribe("t", **({"name": "s", "durable": True} if kept else {})):
                await known(made, "ab", "t", 1)
                await publish(made, "a", numbered(50))
                await until(lambda: link.bridges()[0].refused > 100)
                assert (link.bridges()[0].rejected, len(await here.queues())) == (0, 1)
            if kept:
                assert link.bridges()[0].rejected == 0
                await there.unsubscribe("t", "s")
            refused = link.bridges()[0].refused
            await known(made, "ab", "t", 0)
            await until(lambda: link.bridges()[0].rejected > 0)
            found = link.bridges()[0]
            assert found.rejected + found.carried == 50 and found.refused > refused
            assert str(found.last_error).endswith("were dropped, since nobody there wants these any more")
            await trio.sleep(1)
            assert await here.queues() == []
