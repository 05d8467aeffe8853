"""Large messages between nodes: what an ordinary message could be goes as one, what is larger is refused by name."""

from __future__ import annotations

import random

import pytest
import trio

from meshq import UsageError, limits
from tests.cluster.kit import Mesh, mesh

BLOCK = limits.LARGE_BLOCK_BYTES
BODY = random.Random(3).randbytes(2 * BLOCK + 9)


async def create(nodes: Mesh) -> None:
    for name in "ab":
        async with nodes.client(name) as client:
            await client.create_queue("q")
    await nodes.joined()


def bodies_of(nodes: Mesh, name: str) -> list[str]:
    return nodes.disks[name].names(f"/data/{name}/large")


async def test_large_and_small_messages_cross_a_link_in_their_order() -> None:
    sent = [BODY[: BLOCK + number] if number % 2 else b"%d" % number for number in range(8)]
    async with mesh("ab", root="simulated") as nodes:
        await create(nodes)
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.brokers["a"].cluster("mesh").wait_for(nodes=2, queue="q", consumers=1, timeout=10)
            for body in sent:
                await here.send("q", body)
            got = []
            for _ in sent:
                message = await consumer.receive(timeout=10)
                assert message is not None
                got.append(message.body)
                await message.ack(confirm=True)
            assert got == sent
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


async def test_a_body_waits_for_a_node_that_is_down_and_arrives_once() -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes)
        await nodes.kill("b")
        await nodes.send("a", [BODY + b"%d" % number for number in range(4)])
        await nodes.kill("a")
        await nodes.start("a", "b")
        await nodes.joined()
        await trio.sleep(1)
        got = [delivery.body for name in "ab" for delivery in await nodes.drain(name)]
        assert sorted(got) == [BODY + b"%d" % number for number in range(4)]
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


@pytest.mark.parametrize("mode", ["strict", "on_demand"])
@pytest.mark.parametrize("routing", ["anycast", "multicast"])
async def test_what_is_too_large_for_a_link_stays_where_a_queue_takes_it_and_is_refused_where_none_does(
    mode: str, routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 2 * BLOCK)
    async with mesh("ab", root="simulated", mode=mode) as nodes:
        for name, queues in (("a", ("both",)), ("b", ("both", "there"))):
            async with nodes.client(name) as client:
                await client.create_address("q", routing=routing)
                await client.create_address("only", routing=routing)
                for queue in queues:
                    await client.create_queue(queue, address="q", routing=routing)
        async with nodes.client("b") as there:
            await there.create_queue("far", address="only", routing=routing)
            async with there.consumer("both"), there.consumer("there"), there.consumer("far"):
                await nodes.known("a").wait_for(nodes=2, queue="far", consumers=1, timeout=5)
                async with nodes.client("a") as client:
                    for _ in range(3):
                        await client.send("q", BODY)
                        await client.send("q::both", BODY)
                    for target in ("only", "only::far", "q::there"):
                        with pytest.raises(UsageError, match=f"at most {2 * BLOCK} do, and no queue here takes") as got:
                            await client.send(target, BODY)
                        assert got.value.outcome == "not_done"
                    assert (await client.queue("both")).ready == 6
                await trio.sleep(1)
                assert len(bodies_of(nodes, "a")) == 6
                assert bodies_of(nodes, "b") == []


async def test_who_does_not_get_what_is_too_large_for_a_link_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 2 * BLOCK)
    async with mesh("ab", root="simulated") as nodes:
        async with nodes.client("a") as here, nodes.client("b") as there:
            for client, queues in ((here, ("both", "here")), (there, ("both", "there", "filtered"))):
                await client.create_address("news", routing="multicast")
                for queue in queues:
                    only = "n = 1" if queue == "filtered" else None
                    await client.create_queue(queue, address="news", routing="multicast", filter=only)
            await nodes.joined()
            await trio.sleep(0.5)
            await here.send("news", BODY[:BLOCK])
            await there.send("news", BODY)
            assert [one for one in caplog.records if getattr(one, "event", "") == "too_large_for_links"] != []
            caplog.clear()
            await here.send("news", BODY)
        (text,) = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "too_large_for_links"]
        assert f"a message of {len(BODY)} bytes to 'news' is not given to 'there' of other nodes" in text


async def test_what_is_exactly_as_large_as_a_link_takes_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        async with nodes.client("b") as there:
            await there.create_queue("far", address="only")
        await nodes.joined("a", "b")
        monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", len(BODY))
        async with nodes.client("a") as client:
            await client.send("only::far", BODY)
            with pytest.raises(UsageError, match="no queue here takes it"):
                await client.send("only::far", BODY + b"x")
        assert [delivery.body for delivery in await nodes.drain("b", "far")] == [BODY]
