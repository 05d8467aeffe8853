"""What waits for a node that never comes back is routed anew: all of it, once, in its order."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

from meshq import Message
from meshq.errors import AddressFullError, MeshqError, NotFoundError, UsageError
from meshq.settings import AddressSettings
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until
from tests.cluster.test_lost_nodes import FAST, FINITE, end, numbered, state

ENDS = {"stopped": "left", "killed": "away", "given up": "down"}


def node_id(nodes: Hosts, name: str) -> str:
    return bytes(nodes.brokers[name].node_id).hex()


async def gone(nodes: Hosts, how: str, name: str) -> None:
    """A node is gone, and that is known."""
    if how != "given up" and state_of(nodes, name) == "linked":
        await end(nodes, how, name)
    await until(lambda: state_of(nodes, name) == ENDS[how])


def state_of(nodes: Hosts, name: str) -> str:
    identity = node_id(nodes, name)
    return next(peer.state for peer in nodes.known("a").peers() if peer.node_id == identity)


def cluster(how: str) -> dict[str, Any]:
    return FINITE if how == "given up" else FAST


@pytest.mark.parametrize("how", ENDS)
async def test_what_waits_for_a_node_goes_elsewhere_in_its_order_and_with_its_ids(how: str) -> None:
    async with hosts("abc", cluster=cluster(how)) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("theirs")
        await nodes.joined()
        if how == "given up":
            # Nothing new is kept for it afterwards.
            nodes.network.partition(["a"], ["b"])
        else:
            await gone(nodes, how, "b")
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(auto_create_queues=False))
            await client.send_many("theirs", numbered(300))
        await gone(nodes, how, "b")
        async with nodes.client("c") as client:
            await client.create_queue("theirs")
            async with nodes.client("a") as here:
                waits = await here.queue(nodes.forward("b"))
            assert waits.ready == 300
        await trio.sleep(1)
        assert waiting(nodes) == 300
        async with nodes.client("a") as client:
            assert await client.give_back(node_id(nodes, "b"), force=how == "killed") == 300
            assert await client.give_back(node_id(nodes, "b"), force=True) == 0
        await until(lambda: waiting(nodes) == 0)
        found = await nodes.drain("c", "theirs")
        assert bodies(found) == numbered(300)
        numbers = [delivery.message_id.number for delivery in found]
        assert numbers == list(range(numbers[0], numbers[0] + 300))
        assert {delivery.origin for delivery in found} == {None}


def waiting(nodes: Hosts) -> int:
    return sum(peer.waiting for peer in nodes.known("a").peers())


async def test_a_node_that_is_linked_or_only_away_keeps_what_waits_for_it() -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        async with nodes.client("a") as client:
            with pytest.raises(NotFoundError, match="node"):
                await client.give_back("0" * 32)
            with pytest.raises(UsageError, match="linked"):
                await client.give_back(node_id(nodes, "b"), force=True)
            await nodes.crash("b")
            await until(lambda: state(nodes, "a") == "away")
            await client.send_many("q", numbered(10))
            with pytest.raises(UsageError, match="force=True"):
                await client.give_back(node_id(nodes, "b"))
            assert waiting(nodes) == 5
            assert await client.give_back(node_id(nodes, "b"), force=True) == 5
        # Nothing waits for it when it comes back after all.
        await nodes.start("b")
        await nodes.joined()
        await trio.sleep(1)
        assert await nodes.left() == {"a/q": 10}


async def test_where_only_that_node_had_a_queue_one_is_made_and_a_subscription_of_its_own_stays() -> None:
    async with hosts(cluster=FAST) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("theirs")
            await client.create_queue("sub", address="news", routing="multicast")
            await client.create_queue("all", address="news", routing="multicast")
        await nodes.joined()
        await nodes.stop("b")
        await until(lambda: state(nodes, "a") == "left")
        async with nodes.client("a") as client:
            await client.set_address_settings("theirs", AddressSettings(auto_create_queues=False))
            await client.send_many("theirs", numbered(4))
            await client.send_many("news", numbered(3))
            # It comes too late for what was for others.
            await client.create_queue("here", address="news", routing="multicast")
            assert await client.give_back(node_id(nodes, "b")) == 4
        await nodes.start("b")
        await until(lambda: waiting(nodes) == 0)
        assert await nodes.left() == {"a/theirs": 4, "b/sub": 3, "b/all": 3}


@pytest.mark.slow
async def test_filters_delays_and_times_to_live_hold_for_what_is_given_back() -> None:
    async with hosts(mode="strict", cluster=FAST) as nodes:
        for name, wanted in (("a", "colour = 'red'"), ("b", None)):
            async with nodes.client(name) as client:
                await client.create_queue("q", filter=wanted)
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "away")
        async with nodes.client("a") as client:
            for colour in ("red", "blue"):
                for index in range(4):
                    body = b"%s %d" % (colour.encode(), index)
                    await client.send("q", Message(body, properties={"colour": colour}, delay=20, ttl=40))
            before = waiting(nodes)
            blue = 4
            assert await client.give_back(node_id(nodes, "b"), force=True) == before - blue
            assert waiting(nodes) == blue
            there = await client.queue("q")
            assert (there.ready, there.scheduled) == (0, 4)
            await trio.sleep(25)
            assert (await client.queue("q")).ready == 4
            await trio.sleep(20)
            assert (await client.queue("q")).ready == 0
        assert waiting(nodes) == 0


async def test_a_full_address_keeps_what_is_given_back_waiting() -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "away")
        async with nodes.client("a") as client:
            await client.send_many("q", numbered(10))
            for policy in ("fail", "drop", "block"):
                await client.set_address_settings("q", AddressSettings(max_size_messages=1, full_policy=policy))
                with pytest.raises(AddressFullError):
                    await client.give_back(node_id(nodes, "b"), force=True)
                assert waiting(nodes) == 5
            await client.set_address_settings("q", AddressSettings(max_size_messages=1, full_policy="page"))
            assert await client.give_back(node_id(nodes, "b"), force=True) == 5


@pytest.mark.slow
async def test_after_a_loss_of_power_in_the_middle_each_message_is_in_one_place() -> None:
    there: set[int] = set()
    calls, died = 0, True
    while died:
        calls += 3
        async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
            await nodes.joined()
            await nodes.crash("b")
            await until(lambda nodes=nodes: state(nodes, "a") == "away")
            # Each record is a batch of its own: a cut may come between any two.
            nodes.env = attrs.evolve(nodes.env, failpoint=lambda point: point == "journal.batch_of_one")
            await nodes.stop("a")
            await nodes.start("a")
            for first in range(0, 60, 6):
                await nodes.send("a", numbered(6, first))
            identity = node_id(nodes, "b")
            nodes.lose_power_at("a", calls)
            with trio.move_on_after(10), suppress(MeshqError):
                async with nodes.dial("a", call_timeout=5.0, reconnect_attempts=0) as client:
                    await client.give_back(identity, force=True)
                    await client.flush()
            with trio.move_on_after(1) as patience:
                await nodes.ended("a")
            died = not patience.cancelled_caught
            nodes.disks["a"].faults.fuse = None
            if died:
                await nodes.start("a")
            left = await nodes.left("a")
            assert sum(left.values()) == 60, left
            there.add(left["a/q"])
            async with nodes.client("a") as client:
                await client.give_back(identity, force=True)
            found = await nodes.drain("a")
            assert sorted(map(int, bodies(found))) == list(range(60))
            assert await nodes.left("a") == {}
    # In the middle, at several places, and after it.
    assert len(there) > 3 and max(there) == 60, there
