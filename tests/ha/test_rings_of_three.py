"""Three processes by replication, of which each runs the backup of the one before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio

from meshq import Broker, Message
from meshq.ha._store_claim import StoreClaim
from meshq.testing import SimDisk
from tests.ha.colocated import until
from tests.ha.replicated import PORTS, Machines, machines, url_of
from tests.ha.test_colocated_replicas import hosted, node, replicated

pytestmark = pytest.mark.slow
#: Who runs the backup of whom.
HOSTS: Final = {"a": "b", "b": "c", "c": "a"}
#: What each process runs, once all is well.
RUNS: Final = {host: ("colocated_backup_1", name, "in_sync") for name, host in HOSTS.items()}


def member(ground: Machines, name: str) -> Broker:
    """A node whose group only the next process takes."""
    before = next(one for one, host in HOSTS.items() if host == name)
    return node(ground, name, replicated(primary={"group_name": name}, backup={"group_name": before}))


@asynccontextmanager
async def ring(ground: Machines, nursery: trio.Nursery) -> AsyncIterator[dict[str, Broker]]:
    """The three nodes, each with its replica in sync, once they know who votes."""
    nodes = {name: await ground.start(nursery, member(ground, name)) for name in HOSTS}
    await protected(nodes)
    await trio.sleep(4)
    yield nodes


async def protected(nodes: dict[str, Broker]) -> None:
    """Wait until each node serves, and has its replica at the next process."""
    await until(lambda: hosted(*nodes.values()) == [[RUNS[name]] for name in nodes], 90)
    for one in nodes.values():
        await one.ha.wait_for(role="primary", phase="active", in_sync=True, timeout=60)


async def send(ground: Machines, url: str, body: bytes) -> None:
    async with ground.client_at(url) as client:
        with trio.fail_after(60):
            await client.send("q", Message(body, durable=True))


async def count(ground: Machines, name: str) -> int:
    async with ground.client_of(name) as client:
        return (await client.queue("q")).ready


async def test_each_store_is_served_while_a_process_is_lost_and_each_node_serves_again() -> None:
    async with machines() as (ground, nursery), ring(ground, nursery) as nodes:
        for lost in HOSTS:
            await ground.crash(nodes[lost])
            host = nodes[HOSTS[lost]]
            await until(lambda host=host: host.ha.hosted[0].state == "active", 60)
            for name in HOSTS:
                backup = f"tcp://127.0.0.1:{PORTS[HOSTS[name]] + 100}"
                await send(ground, backup if name == lost else url_of(name), lost.encode())
            nodes[lost] = await ground.start(nursery, member(ground, lost))
            await protected(nodes)
            # The voters are known again.
            await trio.sleep(4)
        assert [await count(ground, name) for name in HOSTS] == [3, 3, 3]
        nursery.cancel_scope.cancel()


async def claimed(ground: Machines, nursery: trio.Nursery, before: Broker) -> Broker:
    """Stop a process, claim the store of its node as an operator does, and start it again."""
    ground.scopes[before.name].cancel()
    # One that confirms nothing waits for that a moment as its store is closed.
    await until(lambda: before.state == "stopped", 10)
    StoreClaim(ground.disks[before.name].mount(), "/data").mark(0)
    node = await ground.start(nursery, member(ground, before.name))
    await node.ha.wait_for(role="primary", phase="active", timeout=60)
    return node


async def test_an_empty_process_in_the_place_of_a_lost_one_gets_its_store_back_from_its_backup() -> None:
    async with machines() as (ground, nursery), ring(ground, nursery) as nodes:
        for name in HOSTS:
            await send(ground, url_of(name), b"before")
        await ground.crash(nodes["b"])
        ground.disks["b"] = SimDisk()
        await until(lambda: nodes["c"].ha.hosted[0].state == "active", 60)
        await send(ground, f"tcp://127.0.0.1:{PORTS['c'] + 100}", b"at the backup only")
        nodes["b"] = await ground.start(nursery, member(ground, "b"))
        await protected(nodes)
        assert [await count(ground, name) for name in HOSTS] == [1, 2, 1]
        # The others have asked again who votes: it does, in its new life, and each other process may be lost.
        await trio.sleep(20)
        await ground.crash(nodes["a"])
        await until(lambda: nodes["b"].ha.hosted[0].state == "active", 60)
        for url in (url_of("b"), url_of("c"), f"tcp://127.0.0.1:{PORTS['b'] + 100}"):
            await send(ground, url, b"more")
        nursery.cancel_scope.cancel()


async def test_a_node_whose_backup_is_lost_for_good_serves_once_its_store_is_claimed() -> None:
    async with machines() as (ground, nursery), ring(ground, nursery) as nodes:
        await send(ground, url_of("a"), b"before")
        await send(ground, url_of("b"), b"of b")
        await ground.crash(nodes["a"])
        await until(lambda: nodes["b"].ha.hosted[0].state == "active", 60)
        await send(ground, f"tcp://127.0.0.1:{PORTS['b'] + 100}", b"at the backup only")
        # The process with the newest store of a is lost, and its disk.
        await ground.crash(nodes["b"])
        ground.disks["b"] = SimDisk()
        waits = await ground.start(nursery, member(ground, "a"))
        # It votes about b, although it has to wait itself: it may not have all that was confirmed.
        await until(lambda: nodes["c"].ha.hosted[0].state == "active", 60)
        await trio.sleep(15)
        assert waits.state == "waiting" and waits.ha.role == "backup"
        nodes["a"] = await claimed(ground, nursery, waits)
        assert await count(ground, "a") == 1
        # An empty process in the place of the lost one gets back what its own backup has, and runs that of a again.
        nodes["b"] = await ground.start(nursery, member(ground, "b"))
        await until(lambda: hosted(nodes["b"], nodes["c"]) == [[RUNS["b"]], [RUNS["c"]]], 90)
        # c has lost its replica while its only voter was away, whose votes are gone by now: that is for an operator.
        await trio.sleep(15)
        assert hosted(nodes["a"]) == [[("colocated_backup_1", "c", "searching")]]
        assert "confirms nothing" in nodes["c"].ha.last_error
        nodes["c"] = await claimed(ground, nursery, nodes["c"])
        await protected(nodes)
        assert (await count(ground, "a"), await count(ground, "b")) == (1, 1)
        nursery.cancel_scope.cancel()
