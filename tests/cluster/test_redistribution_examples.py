"""The setting ``redistribution_delay`` at work: the worked examples with their numbers, and what it meets in pairs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Delivery, MeshqError, Message, MessagesRedistributed, QueueCreated, limits
from tests.cluster.hosts import hosts
from tests.cluster.kit import Mesh, bodies, mesh, until
from tests.cluster.test_redistribution import SETTLED_S, moved, numbered, redistributing, settings_of, taken

TEN = numbered(10)


def patterns(queues: list[str], **delays: float | None) -> dict[str, Any]:
    """Brokers with these queues, and a delay for each pattern."""
    settings = {name: AddressSettings(redistribution_delay=delay) for name, delay in delays.items()}
    return {"broker": {"queues": queues, "address_settings": settings}}


async def waiting(nodes: Mesh, name: str, queue: str = "foo") -> int:
    """The messages of a queue at a node."""
    async with nodes.client(name) as client:
        return (await client.queue(queue)).ready


@pytest.mark.parametrize(("delay_s", "got"), [(None, []), (0.0, TEN)])
async def test_ten_messages_whose_consumer_has_left_move_only_with_the_setting(
    delay_s: float | None, got: list[bytes]
) -> None:
    async with redistributing(delay_s=delay_s) as nodes, nodes.client("b") as here, nodes.client("a") as there:
        async with here.consumer("q", filter="colour = 'green'") as consumer:
            await stranded_at_b(nodes)
            async with there.consumer("q") as other:
                await nodes.known("b").wait_for(queue="q", consumers=2, timeout=5)
                await consumer.close()
                assert bodies(await other.receive_many(10, timeout=SETTLED_S)) == got
        assert await nodes.left() == {"a/q" if got else "b/q": 10}


async def stranded_at_b(nodes: Mesh, queue: str = "q") -> None:
    """Ten messages wait at b, which nobody consumes."""
    await nodes.send("b", TEN, queue)


async def test_a_delay_holds_for_the_addresses_of_its_pattern_and_for_no_other() -> None:
    queues = ["orders", "orders.eu", "jms.a", "jms.b.c", "other"]
    async with mesh("ab", root="simulated", **patterns(queues, **{"orders": 0.0, "jms.#": 0.0})) as nodes:
        await nodes.joined()
        for queue in queues:
            await stranded_at_b(nodes, queue)
        found = {queue: len(await nodes.drain("a", queue, quiet=SETTLED_S)) for queue in queues}
        assert found == {"orders": 10, "orders.eu": 0, "jms.a": 10, "jms.b.c": 10, "other": 0}


async def test_a_delay_under_the_pattern_of_all_holds_for_every_address() -> None:
    async with mesh("ab", root="simulated", **patterns(["x", "y.z"], **{"#": 0.0})) as nodes:
        await nodes.joined()
        for queue in ("x", "y.z"):
            await stranded_at_b(nodes, queue)
            assert bodies(await nodes.drain("a", queue, quiet=SETTLED_S)) == TEN


async def test_a_successor_within_the_delay_keeps_everything_and_when_it_leaves_the_whole_delay_begins() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await stranded_at_b(nodes)
        async with there.consumer("q") as consumer:
            await trio.sleep(2)
            async with here.consumer("q", filter="colour = 'green'"):
                assert await consumer.receive_many(10, timeout=60) == []
            left = trio.current_time()
            assert bodies(await consumer.receive_many(10, timeout=20)) == TEN
            assert 5.0 <= trio.current_time() - left < 5.5


async def test_only_the_last_of_two_consumers_that_closes_begins_the_delay() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await stranded_at_b(nodes)
        async with (
            here.consumer("q", filter="colour = 'green'") as first,
            here.consumer("q", filter="colour = 'red'") as last,
            there.consumer("q") as consumer,
        ):
            await nodes.known("b").wait_for(queue="q", consumers=3, timeout=5)
            await first.close()
            assert await consumer.receive_many(10, timeout=30) == []
            await last.close()
            closed = trio.current_time()
            assert bodies(await consumer.receive_many(10, timeout=20)) == TEN
            assert 5.0 <= trio.current_time() - closed < 5.5


async def test_messages_stay_until_a_consumer_elsewhere_takes_them() -> None:
    async with redistributing() as nodes:
        await stranded_at_b(nodes)
        await trio.sleep(60)
        assert await taken(nodes, "a", 0, filter="colour = 'green'") == []
        assert await nodes.left() == {"b/q": 10}
        assert bodies(await taken(nodes, "a", 10)) == TEN


async def test_consumers_that_come_and_go_without_taking_anything_cause_no_moves() -> None:
    async with redistributing() as nodes, nodes.client("a") as there:
        await stranded_at_b(nodes)
        for number in range(20):
            async with there.consumer("q", filter=f"colour = '{number}'") as consumer:
                await consumer.receive_many(1, timeout=0.2)
        assert moved(nodes, "b") == 0
        assert await nodes.left() == {"b/q": 10}


async def test_five_steps_of_a_message_that_a_consumer_with_another_filter_holds() -> None:
    # A and B, delay 0.0 for foo, which is on both nodes.
    async with mesh("ab", root="simulated", **patterns(["foo"], foo=0.0)) as nodes:
        await nodes.joined()
        async with nodes.client("a") as a, nodes.client("b") as b:
            for name, client in (("a", a), ("b", b)):
                assert len(nodes.known(name).peers()) == 1
                assert (await client.address_settings("foo")).redistribution_delay == 0.0
                assert "foo" in await client.queues()
                assert [peer.state for peer in nodes.known(name).peers()] == ["linked"]
            # A message with 10 is in A's foo.
            await a.send("foo", Message(b"ten", properties={"myProperty": 10}))
            assert await waiting(nodes, "a") == 1
            async with a.consumer("foo", filter="myProperty = 5") as five:
                assert await five.receive(timeout=SETTLED_S) is None
                assert await waiting(nodes, "a") == 1
                async with b.consumer("foo", filter="myProperty = 10") as ten:
                    assert await ten.receive(timeout=SETTLED_S) is None
                    assert (await waiting(nodes, "a"), await waiting(nodes, "b")) == (1, 0)
                    # And once A's consumer has closed, B's gets it.
                    await five.close()
                    found = await ten.receive(timeout=SETTLED_S)
                    assert found is not None and found.body == b"ten"


async def test_with_both_consumers_there_first_the_message_goes_to_the_one_that_takes_it() -> None:
    async with mesh("ab", root="simulated", **patterns(["foo"], foo=0.0)) as nodes:
        await nodes.joined()
        async with (
            nodes.client("a") as a,
            nodes.client("b") as b,
            a.consumer("foo", filter="myProperty = 5"),
            b.consumer("foo", filter="myProperty = 10") as ten,
        ):
            await nodes.known("a").wait_for(queue="foo", consumers=2, timeout=5)
            await a.send("foo", Message(b"ten", properties={"myProperty": 10}))
            found = await ten.receive(timeout=SETTLED_S)
            assert found is not None and found.body == b"ten"
            assert await waiting(nodes, "a") == 0


@pytest.mark.parametrize("first", [True, False])
async def test_a_reply_comes_to_the_consumer_made_before_the_request_and_never_to_one_made_after_the_reply(
    first: bool,
) -> None:
    async with mesh("ab", root="simulated", **patterns(["replies"], replies=0.0)) as nodes:
        await nodes.joined()
        async with nodes.client("a") as asker, nodes.client("b") as answerer:
            # Somebody else waits for another reply at B.
            async with answerer.consumer("replies", filter="AMQCorrelationID = 'other'"):
                await nodes.known("b").wait_for(queue="replies", consumers=1, timeout=5)
                if not first:
                    await answerer.send("replies", Message(b"42", correlation_id="mine"))
                async with asker.consumer("replies", filter="AMQCorrelationID = 'mine'") as consumer:
                    await nodes.known("b").wait_for(queue="replies", consumers=2, timeout=5)
                    if first:
                        await answerer.send("replies", Message(b"42", correlation_id="mine"))
                    found = await consumer.receive(timeout=30)
            assert (found is not None) == first


@pytest.mark.slow
async def test_messages_that_go_back_and_forth_are_no_duplicates_of_themselves() -> None:
    async with redistributing("abc") as nodes:
        await nodes.send("a", [])
        async with nodes.client("a") as client:
            await client.send_many("q", [Message(body, duplicate_id=body) for body in TEN])
        for name in "bcabacb":
            # This consumer draws all of them, reads none, and leaves.
            async with nodes.client(name) as client, client.consumer("q", filter="colour IS NULL") as consumer:
                await until(lambda name=name: ready_at(nodes, name) == 10)
                await client.pause_queue("q")
                await consumer.close()
                await client.resume_queue("q")
        assert bodies(await taken(nodes, "b", 10)) == TEN
        assert await nodes.left() == {}


def ready_at(nodes: Mesh, name: str) -> int:
    """The messages of ``q`` that a node has, given to consumers or not."""
    counts = nodes.brokers[name]._node.core.router.queues["q"].counts
    return counts.ready + counts.unacked


async def test_a_delay_that_is_set_at_run_time_counts_anew_and_none_ends_it() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await stranded_at_b(nodes)
        async with there.consumer("q") as consumer:
            await trio.sleep(4)
            await here.set_address_settings("q", AddressSettings(redistribution_delay=None))
            assert await consumer.receive_many(10, timeout=30) == []
            await here.set_address_settings("q", AddressSettings(redistribution_delay=8.0))
            await trio.sleep(5)
            await here.set_address_settings("q", AddressSettings(redistribution_delay=7.0))
            changed = trio.current_time()
            assert bodies(await consumer.receive_many(10, timeout=20)) == TEN
            assert 7.0 <= trio.current_time() - changed < 7.5


async def test_a_delay_set_at_run_time_holds_after_a_restart() -> None:
    async with redistributing(delay_s=None) as nodes:
        async with nodes.client("b") as here:
            await here.set_address_settings("q", AddressSettings(redistribution_delay=1.0))
        await stranded_at_b(nodes)
        await nodes.kill("b")
        await nodes.start("b")
        await nodes.joined()
        assert bodies(await taken(nodes, "a", 10)) == TEN


@pytest.mark.slow
@pytest.mark.parametrize("calls", [3, 11, 40])
@pytest.mark.parametrize("dies", ["a", "b"])
async def test_a_node_that_loses_its_power_in_the_middle_of_a_move_loses_and_doubles_nothing(
    dies: str, calls: int
) -> None:
    sent = numbered(3_000)
    async with redistributing() as nodes:
        await nodes.send("b", sent)
        try:
            async with nodes.client("a") as there, there.consumer("q", window=1):
                nodes.lose_power_at(dies, calls)
                with trio.move_on_after(3):
                    await nodes.ended(dies)
        except (MeshqError, BaseExceptionGroup):
            assert dies == "a"
        nodes.lose_power(dies)
        await nodes.ended(dies)
        await nodes.start(dies)
        await nodes.joined()
        found = bodies(await taken(nodes, "a", len(sent)))
        left = [one.body for one in await nodes.drain("b")]
        assert sorted(found + left, key=int) == sent


async def test_what_is_delayed_goes_when_it_is_due_and_what_is_large_goes_as_it_is() -> None:
    body = b"x" * 300_000
    async with redistributing() as nodes, nodes.client("b") as here, nodes.client("a") as there:
        await here.send("q", Message(b"later", delay=20.0))
        await here.send("q", Message(body, group="g"))
        async with there.consumer("q") as consumer:
            found = await consumer.receive(timeout=5)
            assert found is not None and (found.body, found.group) == (body, "g")
            assert await consumer.receive(timeout=5) is None
            found = await consumer.receive(timeout=30)
            assert found is not None and found.body == b"later"


@pytest.mark.parametrize("old", [False, True])
async def test_a_body_that_is_larger_than_a_frame_moves_to_a_node_that_takes_it_and_keeps_nothing_behind_it(
    old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", limits.LARGE_BLOCK_BYTES)
    if old:
        monkeypatch.setattr("meshq.broker.session._peering.LINK_FEATURES", "origin counts due queue ids hops announced")
    sent = [bytes(2 * limits.LARGE_BLOCK_BYTES + 1), b"behind it"]
    async with redistributing() as nodes, nodes.client("b") as here, nodes.client("a") as there:
        for body in sent:
            await here.send("q", body)
        async with there.consumer("q") as consumer:
            for body in sent[old:]:
                found = await consumer.receive(timeout=5)
                assert found is not None and await found.read() == body
                await found.ack()
            assert await consumer.receive(timeout=5) is None
        assert (await here.queue("q")).ready == old


async def test_what_a_prepared_transaction_has_acknowledged_stays_with_its_verdict() -> None:
    async with redistributing() as nodes, nodes.client("b") as here:
        await stranded_at_b(nodes)
        async with here.transaction(b"order-7") as tx, here.consumer("q", window=1) as consumer:
            first = await consumer.receive(timeout=5)
            assert first is not None
            await tx.ack(first)
            await tx.prepare()
        assert bodies(await taken(nodes, "a", 9)) == TEN[1:]
        await here.commit(b"order-7")
        assert await nodes.left() == {}


async def test_paged_messages_move_in_order() -> None:
    settings = settings_of(0.0)
    settings["address_settings"]["q"] = AddressSettings(redistribution_delay=0.0, max_size_bytes=20_000)
    sent = [b"%d " % number * 20 for number in range(3_000)]
    async with redistributing(broker=settings) as nodes:
        await nodes.send("b", sent)
        assert bodies(await taken(nodes, "a", len(sent))) == sent
        assert await nodes.left() == {}


async def test_a_paged_queue_of_which_nobody_there_wants_anything_is_read_once_and_not_for_ever() -> None:
    body, settings = b"x" * 4_000, {**settings_of(0.0), "memory_limit": 1 << 20}
    async with redistributing(broker=settings) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await here.send_many("q", [body] * 600)
        pager = nodes.brokers["b"]._node.core.pager
        async with there.consumer("q", filter="colour = 'green'"):
            await until(lambda: pager.read_bytes > 300 * len(body))
            await trio.sleep(5)
            assert pager.read_bytes < 1_500 * len(body)
            # What comes later is looked at, and goes, although nothing before it does.
            await here.send("q", Message(b"wanted", properties={"colour": "green"}))
        assert bodies(await taken(nodes, "a", 1, filter="colour = 'green'")) == [b"wanted"]


async def test_the_delay_begins_anew_when_a_paused_queue_goes_on() -> None:
    async with redistributing(delay_s=5.0) as nodes, nodes.client("a") as there, nodes.client("b") as here:
        await stranded_at_b(nodes)
        async with there.consumer("q") as consumer:
            await trio.sleep(3)
            await here.pause_queue("q")
            await trio.sleep(1)
            await here.resume_queue("q")
            resumed = trio.current_time()
            assert bodies(await consumer.receive_many(10, timeout=20)) == TEN
            assert 5.0 <= trio.current_time() - resumed < 5.5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "silence", "cut"])
async def test_a_link_that_is_lost_in_the_middle_loses_nothing_doubles_nothing_and_keeps_the_order(how: str) -> None:
    sent = numbered(10_000)
    settings = {
        "broker": settings_of(0.0),
        "cluster": {"connection_ttl": 2.0, "check_period": 0.5, "call_timeout": 2.0},
    }
    async with hosts("ab", **settings) as nodes:
        await nodes.joined()
        await nodes.send("b", sent)
        got: list[Delivery] = []
        await nodes.nursery.start(partial(nodes.serve_queue, "a", got))
        for _ in range(3):
            before = len(got)
            await until(lambda: len(got) > before)  # noqa: B023
            assert len(got) < len(sent), "the link is not lost in the middle"
            if how == "cut":
                nodes.network.partition("a", "b")
                await trio.sleep(5)
                nodes.network.heal()
            else:
                getattr(nodes.network, how)("a", "b")
        await until(lambda: len(got) == len(sent))
        await trio.sleep(10)
        assert bodies(got) == sent
        assert moved(nodes, "b") == len(sent)
        assert await nodes.left() == {}


async def test_what_has_moved_is_counted_apart_from_what_operators_move_and_told_of() -> None:
    async with redistributing() as nodes, nodes.client("b") as client:
        events = nodes.brokers["b"].events()
        await stranded_at_b(nodes)
        assert bodies(await taken(nodes, "a", 10)) == TEN
        await client.create_queue("end")
        told = []
        async for event in events:
            if isinstance(event, QueueCreated):
                break
            told.append(event)
        found = [(one.address, one.queue, one.messages) for one in told if isinstance(one, MessagesRedistributed)]
        assert found == [("q", "q", 10)]
        there = await client.queue("q")
        assert (there.redistributed, there.moved, there.added, there.ready) == (10, 0, 10, 0)


def test_the_documentation_says_what_filters_and_replies_need_across_nodes() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/several-nodes.md").read_text(encoding="utf-8")
    (chapter,) = [
        part for part in page.split("\n## ") if part.startswith("… filter, and ask for replies, across nodes")
    ]
    for said in ("myProperty = 5", "myProperty = 10", "*before* the request is sent", "correlation_id ="):
        assert said in chapter, said
