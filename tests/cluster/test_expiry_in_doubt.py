"""What was handed to a link and not answered, and expires: either the other node has it, or it expires here."""

from __future__ import annotations

import pytest
import trio

from meshq import Message
from meshq.settings import AddressSettings
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until
from tests.cluster.test_lost_nodes import FAST, state

TTL_S = 4.0


async def set_out(nodes: Hosts, expiry_address: str | None) -> None:
    """Two nodes, and a queue that only the second has."""
    async with nodes.client("b") as client:
        await client.create_queue("theirs")
    await nodes.joined()
    async with nodes.client("a") as client:
        if expiry_address is not None:
            await client.create_queue(expiry_address)
        settings = AddressSettings(expiry_address=expiry_address, auto_create_queues=False)
        await client.set_address_settings("theirs", settings)


async def send(nodes: Hosts, body: bytes) -> None:
    async with nodes.client("a") as client:
        await client.send("theirs", body, ttl=TTL_S)


async def ready(nodes: Hosts, name: str, queue: str) -> int:
    async with nodes.client(name) as client:
        return (await client.queue(queue)).ready


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_the_other_node_has_stored_does_not_expire_here_though_its_answer_was_lost(restarted: bool) -> None:
    async with hosts(cluster=FAST) as nodes:
        await set_out(nodes, "late")
        # What a sends arrives, and nothing comes back.
        nodes.network.cut("b", "a")
        await send(nodes, b"1")
        await until(lambda: _is_ready(nodes, "b", "theirs", 1))
        assert bodies(await nodes.drain("b", "theirs")) == [b"1"]
        if restarted:
            await nodes.crash("a")
            await nodes.start("a")
        await until(lambda: state(nodes, "a") == "away")
        await trio.sleep(TTL_S * 2)
        assert await ready(nodes, "a", "late") == 0
        assert await ready(nodes, "a", nodes.forward("b")) == 1
        nodes.network.heal()
        await nodes.joined()
        await until(lambda: _is_ready(nodes, "a", nodes.forward("b"), 0))
        await trio.sleep(1)
        assert await nodes.left() == {}


async def _is_ready(nodes: Hosts, name: str, queue: str, count: int) -> bool:
    return await ready(nodes, name, queue) == count


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_never_arrived_expires_here_once_when_the_link_is_back(restarted: bool) -> None:
    async with hosts(cluster=FAST) as nodes:
        await set_out(nodes, "late")
        nodes.network.partition(["a"], ["b"])
        await send(nodes, b"1")
        await until(lambda: state(nodes, "a") == "away")
        # What was never handed to a link expires at its time.
        await send(nodes, b"2")
        if restarted:
            await nodes.crash("a")
            await nodes.start("a")
            await until(lambda: state(nodes, "a") == "away")
        await trio.sleep(TTL_S * 2)
        late = [] if restarted else [b"2"]
        assert bodies(await nodes.drain("a", "late")) == late
        nodes.network.heal()
        await nodes.joined()
        rest = [body for body in (b"1", b"2") if body not in late]
        assert bodies(await nodes.drain("a", "late")) == rest
        assert await nodes.left() == {}


async def test_without_an_expiry_address_nothing_that_expires_waits_for_an_answer() -> None:
    async with hosts(cluster=FAST) as nodes:
        await set_out(nodes, None)
        nodes.network.partition(["a"], ["b"])
        async with nodes.client("a") as client:
            await client.send_many("theirs", [Message(b"%d" % number, ttl=TTL_S) for number in range(10)])
        await until(lambda: state(nodes, "a") == "away")
        await trio.sleep(TTL_S)
        assert await nodes.left("a") == {}


async def test_a_session_that_was_given_up_stores_nothing_once_the_link_has_begun_anew() -> None:
    async with hosts(cluster=FAST) as nodes:
        await set_out(nodes, "late")
        async with nodes.client("b") as client:
            await client.create_queue("late there")
            await client.set_address_settings("theirs", AddressSettings(expiry_address="late there"))
        nodes.network.cut("b", "a")
        # Some of what is on its way arrives after the next session has told how far the link had come.
        nodes.network.delay("a", "b", 1.5, 1.5)
        sent = 0
        async with nodes.client("a") as client:
            while state(nodes, "a") == "linked":
                await client.send("theirs", b"%d" % sent, ttl=0.2)
                sent += 1
                await trio.sleep(0.1)
        nodes.network.heal()
        nodes.network.delay("a", "b", 0.001, 0.001)
        await nodes.joined()
        await trio.sleep(5)
        left = await nodes.left()
        assert sum(left.values()) == sent
        assert set(left) == {"a/late", "b/late there"}
