"""Brokers that run the backups of each other, each with a store of its own on the disk of its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from meshq import Broker, Colocated, MajorityVote, Message, ReplicationBackup, ReplicationPrimary, ScaleDown
from meshq.testing import MemoryQuorum
from tests.ha.colocated import until
from tests.ha.replicated import PORTS, Machines, machines, url_of

RETRY: dict[str, Any] = {"retry_interval": 0.1, "max_retry_interval": 0.5}


def replicated(primary: Any = None, backup: Any = None, **settings: Any) -> Colocated:
    """The policy of a node that replicates, and asks for a backup."""
    return Colocated(
        primary=ReplicationPrimary(wait_for_activation=False, **RETRY, **(primary or {})),
        backup=ReplicationBackup(allow_failback=True, **RETRY, **(backup or {})),
        **{"request_backup": True, "backup_request_retry_interval": 1.0, **settings},
    )


def node(ground: Machines, name: str, policy: Colocated | None, **settings: Any) -> Broker:
    """A node with a disk of its own."""
    cluster = {"call_timeout": 2.0, "connection_ttl": 4.0, "retry_interval": 0.2, "max_retry_interval": 0.5}
    about = {"address_settings": {}, "stop_timeout": 2.0, "node_id": name.encode() * 16, "cluster": cluster}
    return ground.broker(name, policy, **{**about, **settings})


def hosted(*nodes: Broker) -> list[list[tuple[str, str, str]]]:
    return [[(one.name, one.requester, one.phase) for one in each.ha.hosted] for each in nodes]


@asynccontextmanager
async def circle(ground: Machines, nursery: trio.Nursery, **policy: Any) -> AsyncIterator[list[Broker]]:
    """Two nodes with the backups of each other, and a third one that votes."""
    nodes = [await ground.start(nursery, node(ground, name, replicated(**policy))) for name in "ab"]
    nodes.append(await ground.start(nursery, node(ground, "c", None)))
    with trio.fail_after(60):
        for one in nodes[:2]:
            await one.ha.wait_for(in_sync=True)
    # The voters are known.
    await trio.sleep(4)
    yield nodes


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["a", "b"])
async def test_each_of_two_runs_the_backup_of_the_other_and_both_survive_the_death_of_either_process(lost: str) -> None:
    async with machines() as (ground, nursery), circle(ground, nursery) as (a, b, _):
        other = {"a": b, "b": a}[lost]
        gone = {"a": a, "b": b}[lost]
        one = (("colocated_backup_1", "b", "in_sync"), ("colocated_backup_1", "a", "in_sync"))
        assert hosted(a, b) == [[one[0]], [one[1]]]
        assert "colocated_backup_1" in ground.disks["a"].names("/data")
        assert {"hosted", "journal", "standing"} <= set(ground.disks["b"].names("/data/colocated_backup_1"))
        for each in (a, b):
            async with ground.client_of(each.name) as client:
                await client.send("q", Message(each.name.encode(), durable=True))
        await ground.crash(gone)
        await until(lambda: other.ha.hosted[0].state == "active", 60)
        # Each of the two stores is served, with all that is in it, and takes more.
        backup = f"tcp://127.0.0.1:{PORTS[other.name] + 100}"
        for url in (backup, url_of(other.name)):
            async with ground.client_at(url) as client:
                with trio.fail_after(30):
                    await client.send("q", Message(b"more", durable=True))
                assert (await client.queue("q")).ready == 2
        # The process that comes back has the backup of before, and its node its role.
        back = await ground.start(nursery, node(ground, lost, replicated()))
        await until(lambda: hosted(back) == [[("colocated_backup_1", other.name, "in_sync")]], 60)
        await back.ha.wait_for(role="primary", phase="active", timeout=60)
        async with ground.client_of(lost) as client:
            assert (await client.queue("q")).ready == 2
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_three_brokers_with_their_number_as_the_size_survive_the_death_of_one() -> None:
    vote = {"quorum": MajorityVote(size=3, vote_retry_wait=1.0)}
    async with machines() as (ground, nursery), circle(ground, nursery, primary=vote, backup=vote) as (a, b, _):
        await ground.crash(a)
        await until(lambda: b.ha.hosted[0].state == "active", 60)
        # Its node has lost its replica, and goes on.
        for url in (f"tcp://127.0.0.1:{PORTS['b'] + 100}", url_of("b")):
            async with ground.client_at(url) as client:
                with trio.fail_after(30):
                    await client.send("q", Message(b"more", durable=True))
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_that_returns_finds_its_backup_that_has_taken_over_although_both_processes_were_lost() -> None:
    async with machines() as (ground, nursery), circle(ground, nursery) as (a, b, _):
        await ground.crash(a)
        await until(lambda: b.ha.hosted[0].state == "active", 60)
        async with ground.client_at(f"tcp://127.0.0.1:{PORTS['b'] + 100}") as client:
            await client.send("q", Message(b"later", durable=True))
        await ground.crash(b)
        # The host comes later than the node, which waits for what it knows of.
        a = await ground.start(nursery, node(ground, "a", replicated()))
        await trio.sleep(6)
        assert a.ha.role == "backup"
        b = await ground.start(nursery, node(ground, "b", replicated()))
        await a.ha.wait_for(role="primary", phase="active", timeout=60)
        async with ground.client_of("a") as client:
            assert (await client.queue("q")).ready == 1
        await until(lambda: hosted(b) == [[("colocated_backup_1", "a", "in_sync")]], 60)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_backup_whose_node_has_another_one_in_sync_is_set_aside_and_its_number_is_not_given_again() -> None:
    async with machines() as (ground, nursery):
        a = await ground.start(nursery, node(ground, "a", replicated()))
        b = await ground.start(nursery, node(ground, "b", replicated(request_backup=False)))
        await a.ha.wait_for(in_sync=True, timeout=60)
        c = await ground.start(nursery, node(ground, "c", replicated(request_backup=False)))
        await trio.sleep(4)
        await ground.crash(b)
        await until(lambda: hosted(c) == [[("colocated_backup_1", "a", "in_sync")]], 60)
        b = await ground.start(nursery, node(ground, "b", replicated(request_backup=False)))
        aside = "oldreplica.colocated_backup_1"
        await until(lambda: aside in ground.disks["b"].names("/data") and not b.ha.hosted, 60)
        assert hosted(a, b, c) == [[], [], [("colocated_backup_1", "a", "in_sync")]]
        assert "journal" in ground.disks["b"].names(f"/data/{aside}")
        # It finds a place at b again, under another number, also in another life of b.
        await ground.crash(b)
        b = await ground.start(nursery, node(ground, "b", replicated(request_backup=False)))
        # Who votes is found again.
        await trio.sleep(20)
        await ground.crash(c)
        await until(lambda: hosted(b) == [[("colocated_backup_2", "a", "in_sync")]], 60)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_of_two_processes_alone_the_one_that_is_left_confirms_for_its_node_once_the_other_is_back() -> None:
    async with machines() as (ground, nursery):
        a, b = [await ground.start(nursery, node(ground, name, replicated())) for name in "ab"]
        for one in (a, b):
            await one.ha.wait_for(in_sync=True, timeout=60)
        await trio.sleep(4)
        await ground.crash(b)
        # The node that is lost is served: the host of its backup votes.
        await until(lambda: a.ha.hosted[0].state == "active", 60)
        async with ground.client_at(f"tcp://127.0.0.1:{PORTS['a'] + 100}") as client:
            await client.send("q", Message(b"confirmed", durable=True))
        async with ground.client_of("a") as client:
            confirmed = trio.Event()

            async def send() -> None:
                await client.send("q", Message(b"held", durable=True))
                confirmed.set()

            nursery.start_soon(send)
            await trio.sleep(10)
            assert not confirmed.is_set() and "confirms nothing" in a.ha.last_error
            await ground.start(nursery, node(ground, "b", replicated()))
            with trio.fail_after(60):
                await confirmed.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_two_processes_alone_with_a_quorum_provider_survive_the_death_of_either() -> None:
    async with machines() as (ground, nursery):
        quorum = {"quorum": MemoryQuorum()}
        policy = replicated(primary=quorum, backup=quorum)
        a, b = [await ground.start(nursery, node(ground, name, policy)) for name in "ab"]
        for one in (a, b):
            await one.ha.wait_for(in_sync=True, timeout=60)
        await ground.crash(b)
        await until(lambda: a.ha.hosted[0].state == "active", 60)
        for url in (url_of("a"), f"tcp://127.0.0.1:{PORTS['a'] + 100}"):
            async with ground.client_at(url) as client:
                with trio.fail_after(30):
                    await client.send("q", Message(b"more", durable=True))
        b = await ground.start(nursery, node(ground, "b", policy))
        await b.ha.wait_for(role="primary", phase="active", timeout=60)
        await until(lambda: hosted(a, b) == [[("colocated_backup_1", x, "in_sync")] for x in "ba"], 60)
        async with ground.client_of("b") as client:
            assert (await client.queue("q")).ready == 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_what_a_backup_takes_over_goes_to_its_host_if_it_scales_down_and_its_node_serves_again() -> None:
    async with machines() as (ground, nursery):
        policy = {"backup": {"scale_down": ScaleDown()}}
        async with circle(ground, nursery, **policy) as (a, _, _):
            async with ground.client_of("a") as client:
                for number in range(5):
                    await client.send("q", Message(b"%d" % number, durable=True))
            await ground.crash(a)
            found: list[bytes] = []
            async with ground.client_of("b") as client, client.consumer("q") as consumer:
                with trio.fail_after(60):
                    while len(found) < 5:
                        batch = await consumer.receive_many(5, timeout=30)
                        await consumer.ack(*batch)
                        found += [bytes(one.body) for one in batch]
            assert found == [b"0", b"1", b"2", b"3", b"4"]
            a = await ground.start(nursery, node(ground, "a", replicated(**policy)))
            await a.ha.wait_for(role="primary", phase="active", timeout=60)
            async with ground.client_of("a") as client:
                assert (await client.queue("q")).ready == 0
            nursery.cancel_scope.cancel()
