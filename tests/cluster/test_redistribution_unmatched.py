"""The setting ``redistribute_unmatched``: what no consumer of its node takes goes to one on another node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import AddressSettings, Delivery, Message
from tests.cluster.kit import Mesh, bodies, mesh, until
from tests.cluster.test_redistribution import SETTLED_S, moved, numbered, taken

GREEN, RED = "colour = 'green'", "colour = 'red'"


@asynccontextmanager
async def unmatched(names: str = "ab", *, delay_s: float = 0.0, **more: Any) -> AsyncIterator[Mesh]:
    """Nodes whose queue ``q`` gives away what no consumer there takes."""
    settings = AddressSettings(**{"redistribution_delay": delay_s, "redistribute_unmatched": True, **more})
    async with mesh(names, root="simulated", broker={"queues": ["q"], "address_settings": {"q": settings}}) as nodes:
        await nodes.joined()
        yield nodes


def coloured(count: int, *, group: str | None = None) -> list[Message]:
    """Messages that are green and red in turn."""
    return [
        Message(b"%d" % number, properties={"colour": ("green", "red")[number % 2]}, group=group)
        for number in range(count)
    ]


async def send(nodes: Mesh, name: str, messages: list[Message]) -> None:
    async with nodes.client(name) as client:
        await client.send_many("q", messages)


@pytest.mark.parametrize(("gives", "count"), [(False, 0), (True, 300)])
async def test_what_no_consumer_here_takes_goes_only_with_the_setting_and_the_rest_stays_in_order(
    gives: bool, count: int
) -> None:
    async with unmatched(redistribute_unmatched=gives) as nodes, nodes.client("b") as client:
        async with client.consumer("q", filter=GREEN, window=3) as consumer:
            await send(nodes, "b", coloured(600))
            reds = await taken(nodes, "a", count)
            assert bodies(reds) == numbered(600)[1::2][:count]
            got: list[Delivery] = []
            while batch := await consumer.receive_many(100, timeout=SETTLED_S):
                await consumer.ack(*batch)
                got += batch
            assert bodies(got) == numbered(600)[::2]
            assert moved(nodes, "b") == count
        # Without the setting they go when the consumer has gone.
        assert bodies(await taken(nodes, "a", 300 - count)) == numbered(600)[1::2][count:]
        assert await nodes.left() == {}


async def test_a_consumer_here_without_a_filter_keeps_everything_for_it_takes_everything() -> None:
    async with (
        unmatched() as nodes,
        nodes.client("b") as client,
        client.consumer("q", filter=GREEN),
        client.consumer("q", window=1) as all_of_it,
    ):
        await send(nodes, "b", coloured(100))
        assert await taken(nodes, "a", 0) == []
        await all_of_it.close()
        assert len(await taken(nodes, "a", 49)) >= 49


async def test_nothing_goes_to_a_node_where_nobody_takes_it() -> None:
    async with (
        unmatched("abc") as nodes,
        nodes.client("b") as here,
        nodes.client("c") as there,
        here.consumer("q", filter=GREEN, window=1),
        there.consumer("q", filter="colour = 'blue'"),
    ):
        await send(nodes, "b", coloured(20))
        await trio.sleep(60)
        assert moved(nodes, "b") == 0
        assert bodies(await taken(nodes, "a", 10, filter=RED)) == numbered(20)[1::2]


async def test_a_group_stays_with_whoever_gets_a_part_of_it_here() -> None:
    async with unmatched() as nodes, nodes.client("b") as client:
        async with client.consumer("q", filter=GREEN, window=1):
            await send(nodes, "b", coloured(20, group="g"))
            assert await taken(nodes, "a", 0) == []
        assert len(await taken(nodes, "a", 19)) >= 19


async def test_the_whole_delay_begins_when_the_consumer_closes_that_took_them_and_not_when_another_one_comes() -> None:
    async with unmatched(delay_s=5.0) as nodes, nodes.client("b") as here, nodes.client("a") as there:
        await send(nodes, "b", coloured(40)[1::2])
        async with (
            here.consumer("q", filter=GREEN),
            here.consumer("q", filter=RED, window=1) as red,
            there.consumer("q") as consumer,
        ):
            assert await consumer.receive_many(20, timeout=60) == []
            await red.close()
            closed = trio.current_time()
            await trio.sleep(3)
            async with here.consumer("q", filter="colour = 'blue'"):
                assert len(await consumer.receive_many(19, timeout=20)) == 19
                assert 5.0 <= trio.current_time() - closed < 5.5


async def test_the_setting_can_be_changed_while_messages_wait() -> None:
    async with unmatched(redistribute_unmatched=False) as nodes, nodes.client("b") as here, nodes.client("a") as there:
        await send(nodes, "b", coloured(10))
        async with here.consumer("q", filter=GREEN, window=1), there.consumer("q", filter=RED) as consumer:
            assert await consumer.receive_many(5, timeout=SETTLED_S) == []
            settings = AddressSettings(redistribution_delay=0.0, redistribute_unmatched=True)
            await here.set_address_settings("q", settings)
            assert bodies(await consumer.receive_many(5, timeout=SETTLED_S)) == numbered(10)[1::2]
            assert moved(nodes, "b") == 5


async def test_messages_that_come_while_a_consumer_here_works_go_on_at_once() -> None:
    async with unmatched() as nodes, nodes.client("b") as here, here.consumer("q", filter=GREEN, window=1) as green:
        await send(nodes, "b", coloured(10))
        async with nodes.client("a") as there, there.consumer("q", filter=RED) as consumer:
            await until(lambda: moved(nodes, "b") == 5)
            await here.pause_queue("q")
            await send(nodes, "b", coloured(10))
            await here.resume_queue("q")
            assert bodies(await consumer.receive_many(10, timeout=SETTLED_S)) == [*numbered(10)[1::2]] * 2
            assert (await green.receive(timeout=5)).body == b"0"


async def many_filters(nodes: Mesh, name: str, stack: AsyncExitStack) -> None:
    """Have so many consumers at a node that other nodes are not told what these want."""
    client = await stack.enter_async_context(nodes.client(name))
    for number in range(70):
        reply = f"correlation_id = 'the request {number:040} of {name}'"
        await stack.enter_async_context(client.consumer("q", filter=reply))


@pytest.mark.slow
async def test_what_nobody_takes_does_not_go_back_and_forth_between_nodes_with_more_filters_than_are_told() -> None:
    async with unmatched() as nodes, AsyncExitStack() as stack:
        for name in "ab":
            await many_filters(nodes, name, stack)
        await nodes.joined(queue="q", consumers=140)
        await nodes.send("a", [b"for nobody"])
        await trio.sleep(1)
        assert moved(nodes, "a") + moved(nodes, "b") == 0


@pytest.mark.slow
async def test_what_may_be_wanted_where_not_all_filters_are_told_goes_there_once() -> None:
    async with (
        unmatched() as nodes,
        nodes.client("b") as here,
        here.consumer("q", filter=GREEN, window=1),
        AsyncExitStack() as stack,
    ):
        await send(nodes, "b", coloured(10))
        await many_filters(nodes, "a", stack)
        await until(lambda: moved(nodes, "b") == 5)
        await trio.sleep(1)
        assert (moved(nodes, "a"), moved(nodes, "b")) == (0, 5)
