"""A node that leaves hands over whole runs of messages of which much is to be said."""

from __future__ import annotations

import attrs
import pytest
import trio

from meshq import AddressSettings, RefusedError, limits
from tests.cluster import kit
from tests.cluster.kit import Mesh, bodies
from tests.cluster.test_drain import drained
from tests.cluster.test_transfer import inside, nodes_with_queues, numbered, taken, to
from tests.cluster.test_transfer_whole import Wall

pytestmark = pytest.mark.slow

ROWS = limits.RUN_MESSAGES_MAX
LATER = {"broker": {"queues": ["q"], "address_settings": {"#": AddressSettings(redelivery_delay=60.0)}}}


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the time of day pass as the time of the test."""
    made = kit.simulated
    monkeypatch.setattr(kit, "simulated", lambda: attrs.evolve(made(), wall=Wall()))


async def returned(nodes: Mesh, queue: str) -> None:
    """Have a whole run of a queue wait for its second delivery."""
    await nodes.send("a", numbered(ROWS), queue)
    async with nodes.client("a") as client, client.consumer(queue, window=ROWS) as consumer:
        got = await consumer.receive_many(ROWS, timeout=5)
        while len(got) < ROWS:
            got += await consumer.receive_many(ROWS, timeout=5)
        await consumer.nack(*got)
    assert [len(view.states) for view in nodes.brokers["a"]._node.core.router.queues[queue].runs()] == [ROWS]


async def in_order(nodes: Mesh, queue: str) -> None:
    """See all of it at ``b`` when its time has come."""
    await trio.sleep(61)
    found = await taken(nodes, "b", queue)
    assert bodies(found) == numbered(ROWS)
    assert {one.delivery_count for one in found} == {2}


async def test_a_run_of_which_each_message_was_delivered_and_waits_crosses_in_several_frames() -> None:
    async with nodes_with_queues(**LATER) as nodes:
        await returned(nodes, "q")
        assert (await drained(nodes)).state == "transferred"
        await nodes.kill("b")
        await nodes.start("b")
        await in_order(nodes, "q")


async def test_a_node_starts_with_a_run_of_which_more_is_to_be_said_than_a_header_holds() -> None:
    async with nodes_with_queues(**LATER) as nodes:
        async with nodes.client("a") as client:
            await client.create_queue("f", filter=f"colour <> '{'x' * 1_000}' OR TRUE")
        await returned(nodes, "f")
        await inside(nodes).transfer.close()
        await inside(nodes).transfer.move("f", to(nodes), ROWS)
        await nodes.kill("a")
        await nodes.start("a")
        await nodes.joined()
        assert (await drained(nodes)).state == "transferred"
        await nodes.kill("b")
        await nodes.start("b")
        await in_order(nodes, "f")


async def test_a_message_of_which_more_is_to_be_said_than_a_header_holds_stays_and_is_named() -> None:
    async with nodes_with_queues(broker={"queues": ["q"]}) as nodes:
        async with nodes.client("a") as client:
            await client.create_queue("o" * 512)
            await client.create_queue("n" * 512, address="a" * 512, filter=f"colour <> '{'x' * 2_000}' OR TRUE")
            for body in (b"1", b"2"):
                await client.send("o" * 512 if body == b"1" else "a" * 512, body)
            assert await client.move_messages("o" * 512, "a" * 512) == 1
        with pytest.raises(RefusedError, match="1 of 'nnn"):
            await drained(nodes)
        assert bodies(await taken(nodes, "b", "n" * 512)) == [b"2"]
