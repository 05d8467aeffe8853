"""What comes over a link to an address that is full: each policy, over two nodes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from meshq import AddressFullError, AddressSettings
from meshq.settings import JournalSettings
from tests.cluster.kit import Mesh, bodies, mesh, until
from tests.cluster.test_nodes import create

#: What the address ``q`` of the node ``b`` holds.
ROOM = 10


@asynccontextmanager
async def two(policy: str, *, root: str | None = None, **settings: Any) -> AsyncIterator[Mesh]:
    """The nodes ``a``, which makes no queues, and ``b``, which has a bounded queue ``q`` and a queue ``r``."""
    full = AddressSettings(full_policy=policy, max_size_messages=ROOM)
    own = {
        "a": {"address_settings": {"#": AddressSettings(auto_create_queues=False)}},
        "b": {"address_settings": {"q": full}},
    }
    async with mesh("ab", root=root, mode="strict", own=own, **settings) as nodes:
        for queue in ("q", "r"):
            await create(nodes, "b", queue=queue)
        await known(nodes)
        yield nodes


async def known(nodes: Mesh) -> None:
    await nodes.joined("a", "b")
    for queue in ("q", "r"):
        await nodes.known("a").wait_for(queue=queue, timeout=5)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def ready(nodes: Mesh, name: str, queue: str = "q") -> int:
    async with nodes.client(name) as client:
        return (await client.queue(queue)).ready


def blocked(nodes: Mesh) -> int:
    return sum(peer.blocked for peer in nodes.known("a").peers())


def waiting(nodes: Mesh) -> int:
    return sum(peer.waiting for peer in nodes.known("a").peers())


@pytest.mark.parametrize("policy", ["block", "fail"])
async def test_what_has_no_room_waits_at_the_sender_and_holds_up_no_other_queue(policy: str) -> None:
    async with two(policy) as nodes:
        await nodes.send("a", numbered(100))
        # Sent behind a hundred messages of which only ten have room.
        await nodes.send("a", [b"other"], address="r")
        assert bodies(await nodes.drain("b", "r")) == [b"other"]
        assert (await ready(nodes, "b"), blocked(nodes), waiting(nodes)) == (ROOM, 100 - ROOM, 100 - ROOM)
        assert bodies(await nodes.drain("b")) == numbered(100)
        await until(lambda: waiting(nodes) == 0)
        assert blocked(nodes) == 0


async def test_what_drops_drops_what_comes_over_a_link_and_counts_it() -> None:
    async with two("drop") as nodes:
        # One run goes in beyond the limit, as from a producer here.
        await nodes.send("a", numbered(2 * ROOM))
        await until(lambda: waiting(nodes) == 0)
        await nodes.send("a", numbered(7, 100))
        await nodes.send("a", [b"other"], address="r")
        await until(lambda: waiting(nodes) == 0)
        assert blocked(nodes) == 0
        async with nodes.client("b") as client:
            now = await client.queue("q")
        known = nodes.brokers["b"].statistics()
        assert (now.ready, now.dropped, known.dropped, known.unrouted) == (2 * ROOM, 7, 7, 0)
        assert bodies(await nodes.drain("b", "r")) == [b"other"]
        assert bodies(await nodes.drain("b")) == numbered(2 * ROOM)
        # There is room again.
        await nodes.send("a", numbered(3, 200))
        assert bodies(await nodes.drain("b")) == numbered(3, 200)


async def test_a_full_address_that_pages_takes_what_comes_over_a_link() -> None:
    async with two("page", root="simulated") as nodes:
        await nodes.send("a", numbered(100))
        await until(lambda: waiting(nodes) == 0)
        assert await ready(nodes, "b") == 100
        assert bodies(await nodes.drain("b")) == numbered(100)


async def test_a_last_value_queue_that_is_full_goes_on_without_a_stop() -> None:
    """A ring: the newest message takes the place of the one before, so that there is always room."""
    full = AddressSettings(full_policy="block", max_size_messages=ROOM, default_last_value_key="k")
    own = {
        "a": {"address_settings": {"#": AddressSettings(auto_create_queues=False)}},
        "b": {"address_settings": {"q": full}},
    }
    async with mesh("ab", mode="strict", own=own) as nodes:
        for queue in ("q", "r"):
            await create(nodes, "b", queue=queue)
        await known(nodes)
        async with nodes.client("a") as client:
            for number in range(3 * ROOM):
                await client.send("q", b"%d" % number, properties={"k": number % 2})
        await until(lambda: waiting(nodes) == 0)
        assert bodies(await nodes.drain("b")) == [b"28", b"29"]


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("peace", [True, False])
async def test_what_waits_for_room_is_neither_lost_nor_doubled_when_a_node_ends(victim: str, peace: bool) -> None:
    async with two("block", root="simulated") as nodes:
        sent = {"q": numbered(24), "r": numbered(12, 1000)}
        for at in range(12):
            await nodes.send("a", sent["q"][2 * at : 2 * at + 2])
            await nodes.send("a", sent["r"][at : at + 1], address="r")
        await until(lambda: blocked(nodes) == 24 - ROOM)
        await (nodes.stop if peace else nodes.kill)(victim)
        await nodes.start(victim)
        await known(nodes)
        await nodes.send("a", numbered(5, 100))
        await until(lambda: blocked(nodes) == 29 - ROOM)
        assert bodies(await nodes.drain("b", "r")) == sent["r"]
        assert bodies(await nodes.drain("b")) == [*sent["q"], *numbered(5, 100)]
        await until(lambda: waiting(nodes) == 0)
        # The address goes with the others again, and waits again.
        await nodes.send("a", numbered(30, 200))
        await until(lambda: blocked(nodes) == 30 - ROOM)
        await nodes.kill("b")
        await nodes.start("b")
        await known(nodes)
        assert bodies(await nodes.drain("b")) == numbered(30, 200)


async def fill(nodes: Mesh, name: str) -> int:
    """Leave a node's disk no room; return how many messages it took until it said so."""
    disk = nodes.disks[name]
    disk.capacity_bytes = disk.used_bytes()
    async with nodes.client(name) as client:
        for sent in range(1_000):
            try:
                await client.send("r", bytes(8_000))
            except AddressFullError:
                return sent
    raise AssertionError("the disk has room")


@pytest.mark.parametrize("killed", [False, True])
async def test_a_branch_that_the_disk_has_no_room_for_ends_one_session_and_the_next_one_waits(
    killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is granted no bytes while the disk is full, and a branch is told of only with the run behind it."""
    small = {"journal": JournalSettings(segment_bytes=64 * 1024)}
    async with two("block", root="simulated", broker=small) as nodes:
        stored = await fill(nodes, "b")
        await nodes.send("a", numbered(40))
        await nodes.send("a", [b"other"], address="r")
        # As long as two thousand attempts to connect.
        await trio.sleep(100)
        assert waiting(nodes) == 41 and nodes.known("a").peers()[0].state == "linked"
        if killed:
            # What is left behind the ends of segments is room again.
            await nodes.kill("b")
            await nodes.start("b")
            await known(nodes)
        ended = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "peer_lost"]
        assert [one for one in ended if "to node b" in one and "the disk has no room" in one] == ended
        assert len(ended) == 1
        nodes.disks["b"].capacity_bytes = math.inf
        await until(lambda: blocked(nodes) == waiting(nodes) == 40 - ROOM)
        assert bodies(await nodes.drain("b", "r")) == [bytes(8_000)] * stored + [b"other"]
        assert bodies(await nodes.drain("b")) == numbered(40)


async def test_a_bound_that_comes_and_goes_at_run_time_holds_for_links() -> None:
    async with two("page", root="simulated") as nodes:
        async with nodes.client("b") as client:
            await nodes.send("a", numbered(20))
            await until(lambda: waiting(nodes) == 0)
            await client.set_address_settings("q", AddressSettings(full_policy="block", max_size_messages=ROOM))
            await nodes.send("a", numbered(20, 20))
            await until(lambda: blocked(nodes) == 20)
            await client.set_address_settings("q", AddressSettings())
            await until(lambda: waiting(nodes) == 0)
        assert bodies(await nodes.drain("b")) == numbered(40)


async def test_the_stuck_detector_says_that_an_address_of_the_other_node_is_full() -> None:
    async with two("block") as nodes:
        await nodes.send("a", numbered(ROOM + 5))
        await until(lambda: blocked(nodes) == 5)
        # Longer than ``stuck_timeout`` and a look.
        await trio.sleep(80)
        stuck = nodes.known("a").stuck()
        assert [(one.address, one.cause, one.messages) for one in stuck] == [("q", "flow_control", 5)]
        assert "'q' is full at the node" in stuck[0].why


@pytest.mark.parametrize("policy", ["block", "fail"])
async def test_what_is_redistributed_to_a_full_address_waits_at_its_own_node(policy: str) -> None:
    full = AddressSettings(full_policy=policy, max_size_messages=ROOM)
    moving = AddressSettings(redistribution_delay=0.0)
    own = {"a": {"address_settings": {"#": moving}}, "b": {"address_settings": {"q": full}}}
    async with mesh("ab", mode="on_demand", own=own) as nodes:
        for queue in ("q", "r"):
            await create(nodes, "a", "b", queue=queue)
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(1_000))
        await nodes.send("a", numbered(100, 1_000), address="r")
        async with nodes.client("b") as client, client.consumer("q", window=1) as there, client.consumer("r") as other:
            got = [await other.receive(timeout=5) for _ in range(100)]
            assert bodies([one for one in got if one is not None]) == numbered(100, 1_000)
            # What has no room there went ahead by one move at most: the rest is here for a consumer that comes.
            assert await ready(nodes, "a") >= 1_000 - ROOM - 2 * 256
            for number in range(20):
                delivery = await there.receive(timeout=5)
                assert delivery is not None and delivery.body == b"%d" % number
                await delivery.ack()
        assert bodies(await nodes.drain("b")) == numbered(980, 20)


async def test_a_drain_to_a_node_whose_address_is_full_waits_and_loses_nothing() -> None:
    async with two("fail", root="simulated") as nodes:
        for queue in ("q", "s"):
            await create(nodes, "a", queue=queue)
        await nodes.known("a").wait_for(queue="q", queues=2, timeout=5)
        await nodes.send("a", numbered(80))
        await nodes.send("a", [b"other"], address="s")
        moved = trio.Event()
        async with trio.open_nursery() as nursery:

            async def drained() -> None:
                async with nodes.brokers["a"].drain(target="b") as progress:
                    async for _ in progress:
                        pass
                moved.set()

            nursery.start_soon(drained)
            await trio.sleep(5)
            assert await ready(nodes, "b") == ROOM and not moved.is_set()
            # What has no room there stays in its queue here: only the half that was dealt waits on the link.
            assert blocked(nodes) == 40 - ROOM
            # What is full keeps nothing of other queues back.
            assert bodies(await nodes.drain("b", "s")) == [b"other"]
            got: list[bytes] = []
            while not moved.is_set():
                got += bodies(await nodes.drain("b"))
            got += bodies(await nodes.drain("b"))
            assert sorted(got, key=int) == numbered(80)


@pytest.mark.parametrize("idle", [False, True])
async def test_two_nodes_that_are_full_of_what_waits_for_each_other_go_on(idle: bool) -> None:
    """A copy that waits for the other node keeps its run in memory: that is no room which a link could wait for.

    ``idle``: each node has a subscription that nobody reads, with a little of it.
    """
    full = AddressSettings(full_policy="block", max_size_bytes=40_000)
    own = {name: {"address_settings": {"news": full}} for name in "ab"}
    sent = [b"%03d" % number + bytes(1_000) for number in range(100)]
    async with mesh("ab", root="simulated", mode="strict", own=own) as nodes:
        for name in "ab":
            async with nodes.client(name) as client:
                await client.create_queue(f"of.{name}", address="news", routing="multicast")
                if idle:
                    await client.create_queue(f"idle.{name}", address="news", routing="multicast", filter="idle = 1")
        for name, other in ("ab", "ba"):
            await nodes.known(name).wait_for(queue=f"of.{other}", timeout=5)
        if idle:
            async with nodes.client("a") as client:
                for _ in range(4):
                    await client.send("news", b"idle", properties={"idle": 1})
            for name in "ab":
                assert bodies(await nodes.drain(name, f"of.{name}")) == 4 * [b"idle"]
                assert await ready(nodes, name, f"idle.{name}") == 4
        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(nodes.send, name, sent, "news")
            await trio.sleep(3)
            got: dict[str, list[bytes]] = {"a": [], "b": []}

            async def take(name: str) -> None:
                while len(got[name]) < 200:
                    got[name] += bodies(await nodes.drain(name, f"of.{name}"))

            with trio.fail_after(60):
                async with trio.open_nursery() as takers:
                    for name in "ab":
                        takers.start_soon(take, name)
        for found in got.values():
            assert sorted(found) == sorted(2 * sent)


@pytest.mark.parametrize(("names", "grouped"), [("ab", False), ("ab", True), ("abc", False)])
async def test_nodes_that_are_full_of_what_only_a_consumer_of_the_next_one_takes_go_on(
    names: str, grouped: bool
) -> None:
    """``grouped``: nobody else may take it, because that consumer holds its group."""
    moving = AddressSettings(redistribution_delay=0.0, redistribute_unmatched=True)
    full = attrs.evolve(moving, full_policy="block", max_size_messages=4)
    own = {name: {"address_settings": {"#": moving}} for name in names}
    got: dict[str, list[bytes]] = {name: [] for name in names}
    async with mesh(names, mode="on_demand", own=own) as nodes:
        await create(nodes, *names, queue="q")
        await nodes.joined(*names)
        for name, after in zip(names, names[1:] + names[0], strict=True):
            async with nodes.client(name) as client:
                if grouped:
                    await client.send("q", b"first", properties={"for": name}, group=name)
                for body in numbered(8):
                    await client.send("q", body, properties={"for": after}, group=after if grouped else None)
                await client.set_address_settings("q", full)

        async def take(name: str) -> None:
            async with nodes.client(name) as client, client.consumer("q", filter=f"for = '{name}'") as there:
                while len(got[name]) < 8 + grouped:
                    delivery = await there.receive()
                    assert delivery is not None
                    await delivery.ack()
                    got[name].append(bytes(delivery.body))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(take, name)
    assert got == dict.fromkeys(names, [b"first"] * grouped + numbered(8))
