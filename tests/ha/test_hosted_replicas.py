"""A replica that another node hosts: its primary remembers where it is, and who votes about the two."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from meshq import Message, ReplicationBackup, ReplicationPrimary
from meshq.ha._store_claim import StoreClaim
from meshq.ha.colocated import HostedReplica
from meshq.ha.replication import HostedAt
from meshq.ha.replication._standing_format import Standing, decode_standing, encode_standing
from meshq.ha.votes import apart_from
from meshq.testing import SimDisk
from tests.ha.colocated import until
from tests.ha.replicated import Machines, machines, url_of

ALONE: dict[str, Any] = {"cluster": {"static_connectors": []}}


def hosted(**settings: Any) -> HostedReplica:
    """The policy of a backup of a, in the process of c."""
    return HostedReplica.of(ReplicationBackup(**settings), HostedAt(node_url=url_of("a"), host_url=url_of("c")))


async def hosted_pair(ground: Machines, nursery: trio.Nursery, **backup: Any) -> tuple[Any, Any]:
    """A primary that knows no other node, and its replica, which is hosted."""
    first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(), **ALONE))
    second = await ground.start(nursery, ground.broker("b", hosted(**backup)))
    await first.ha.wait_for(in_sync=True, timeout=60)
    return first, second


@pytest.mark.slow
async def test_a_primary_that_returns_finds_the_hosted_replica_that_has_taken_over() -> None:
    async with machines() as (ground, nursery):
        first, second = await hosted_pair(ground, nursery, allow_failback=True)
        await ground.crash(first)
        await second.ha.wait_for(role="primary", phase="active", timeout=60)
        async with ground.client_of("b") as client:
            await client.send("q", Message(b"later", durable=True))
        waits = ReplicationPrimary(wait_for_activation=False)
        again = await ground.start(nursery, ground.broker("a", waits, **ALONE))
        await again.ha.wait_for(role="primary", phase="active", timeout=60)
        await again.ha.wait_for(in_sync=True, timeout=60)
        assert again.ha.epoch == 3
        async with ground.client_of("a") as client:
            assert (await client.queue("q")).ready == 1


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_primary_that_returns_without_its_disk_gets_its_store_back_from_its_hosted_replica(
    at_once: bool,
) -> None:
    async with machines() as (ground, nursery):
        given = {**ALONE, "node_id": b"n" * 16}
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(), **given))
        second = await ground.start(nursery, ground.broker("b", hosted(allow_failback=True)))
        await first.ha.wait_for(in_sync=True, timeout=60)
        async with ground.client_of("a") as client:
            await client.send("q", Message(b"confirmed", durable=True))
        await ground.crash(first)
        ground.disks["a"] = SimDisk()
        if not at_once:
            await second.ha.wait_for(role="primary", phase="active", timeout=60)
        again = await ground.start(nursery, ground.broker("a", ReplicationPrimary(wait_for_activation=False), **given))
        await until(lambda: again.ha.epoch == 3 and len(again.ha.in_sync) == 2, 60)
        async with ground.client_of("a") as client:
            assert (await client.queue("q")).ready == 1
        assert remembered(ground) == url_of("b")
        nursery.cancel_scope.cancel()


async def test_a_replica_whose_place_the_disk_does_not_take_is_left_out() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(), **ALONE))
        ground.disks["a"].faults.inject("replace", path="standing", times=1)
        events = first.events()
        await ground.start(nursery, ground.broker("b", hosted()))
        reasons = []
        with trio.fail_after(60):
            async for event in events:
                if event.kind == "in_sync_changed":
                    break
                if event.kind == "replica_dropped":
                    reasons.append(event.reason)
        assert reasons == ["disk"]


def remembered(ground: Machines) -> str:
    """The place of its replica, as the disk of a has it."""
    file = ground.disks["a"].mount().open("/data/standing")
    return decode_standing(file.read_at(0, 100_000), "standing").place


@pytest.mark.parametrize("fails", [False, True])
async def test_a_place_that_is_written_late_does_not_replace_that_of_the_replica_that_counts(fails: bool) -> None:
    async with machines() as (ground, nursery):
        first, second = await hosted_pair(ground, nursery)
        await ground.crash(second)
        await until(lambda: len(first.ha.in_sync) == 1, 60)
        gate = ground.threads["a"].close("remember")
        # The next one has everything, its place is being written, and it goes.
        third = await ground.start(nursery, ground.broker("c", hosted()))
        await until(lambda: third.ha.phase == "syncing", 60)
        await trio.sleep(2)
        await ground.crash(third)
        await ground.start(nursery, ground.broker("b", hosted()))
        await trio.sleep(2)
        assert len(first.ha.in_sync) == 1
        if fails:
            # The name is on the disk all the same.
            ground.disks["a"].faults.inject("sync_directory", times=1)
        ground.threads["a"].open()
        assert gate.is_set()
        await first.ha.wait_for(in_sync=True, timeout=60)
        assert remembered(ground) == url_of("b")
        nursery.cancel_scope.cancel()


async def test_a_node_that_refuses_at_the_place_of_the_replica_holds_its_primary_up_until_that_is_claimed() -> None:
    async with machines() as (ground, nursery):
        first, second = await hosted_pair(ground, nursery)
        await ground.crash(second)
        await ground.crash(first)
        ground.disks["b"] = SimDisk()
        await ground.start(nursery, ground.broker("b", None, cluster={"password": "other", "static_connectors": []}))
        waits = ReplicationPrimary(wait_for_activation=False)
        again = await ground.start(nursery, ground.broker("a", waits, **ALONE))
        await until(lambda: "the authentication failed" in again.ha.last_error, 60)
        await trio.sleep(10)
        # It may be the host, with another password.
        assert (again.state, again.ha.phase) == ("waiting", "searching")
        assert f"({url_of('b')}): the replica that came in sync last was there" in again.ha.last_error
        assert "`meshq store claim`" in again.ha.last_error
        await ground.crash(again)
        StoreClaim(ground.disks["a"].mount(), "/data").mark(0)
        for _ in range(2):
            # Nor is the place asked later.
            again = await ground.start(nursery, ground.broker("a", waits, **ALONE))
            await again.ha.wait_for(role="primary", phase="active", timeout=60)
            await ground.crash(again)
        nursery.cancel_scope.cancel()


async def test_a_node_that_misses_its_replica_names_its_place_and_the_claim_whatever_other_nodes_say() -> None:
    async with machines() as (ground, nursery):
        first, second = await hosted_pair(ground, nursery)
        await first.stop()
        await ground.crash(second)
        # One that refuses, since it serves for another node id.
        await ground.start(nursery, ground.broker("c", ReplicationPrimary(), **ALONE))
        waits, asks = ReplicationPrimary(wait_for_activation=False), {"static_connectors": [url_of("c")]}
        again = await ground.start(nursery, ground.broker("a", waits, cluster=asks))
        place = f"no answer from {url_of('b')}: the replica that came in sync last was there"
        await until(lambda: place in again.ha.last_error, 60)
        board, shown = again.ha._board, set[str]()
        board.watch(lambda: shown.add(board.report.last_error))
        await trio.sleep(10)
        # Nothing else is shown in between.
        assert not shown and "`meshq store claim`" in again.ha.last_error
        assert (again.state, again.ha.phase) == ("waiting", "searching")
        # Once the replica is back, all of that is over.
        await ground.start(nursery, ground.broker("b", hosted(allow_failback=True)))
        await again.ha.wait_for(role="primary", phase="active", in_sync=True, timeout=60)
        assert again.ha.last_error == ""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("other", [None, ReplicationPrimary()])
async def test_a_node_of_another_pair_at_the_place_of_the_replica_makes_no_difference(other: Any) -> None:
    async with machines() as (ground, nursery):
        first, second = await hosted_pair(ground, nursery)
        await ground.crash(second)
        await ground.crash(first)
        ground.disks["b"] = SimDisk()
        await ground.start(nursery, ground.broker("b", other, cluster={"static_connectors": []}))
        waits = ReplicationPrimary(wait_for_activation=False)
        again = await ground.start(nursery, ground.broker("a", waits, **ALONE))
        await again.ha.wait_for(role="primary", phase="active", timeout=60)
        nursery.cancel_scope.cancel()


def test_a_voter_that_hosts_the_replica_votes_only_where_their_number_stays_odd() -> None:
    assert apart_from(["b"], ["b"]) == ("b",)
    assert apart_from(["b", "c"], ["b"]) == ("c",)
    assert apart_from(["b", "c", "d"], ["b"]) == ("b", "c", "d")
    assert apart_from(["b", "c"], []) == ("b", "c")
    assert apart_from(["b", "c"], ["b", "c"]) == ("b", "c")
    assert apart_from([], ["b"]) == ()


@pytest.mark.parametrize("place", ["", "tcp://x:1"])
def test_the_place_of_a_replica_is_in_the_memory_of_its_primary_if_there_is_one(place: str) -> None:
    standing = Standing(epoch=3, place=place)
    data = encode_standing(standing)
    assert decode_standing(data, "f") == standing
    assert (b'"place"' in data) is bool(place)
    assert attrs.evolve(standing, epoch=4).place == place
    # Who claims a store waits for no node any more.
    assert standing.unclaimed.place == ""
