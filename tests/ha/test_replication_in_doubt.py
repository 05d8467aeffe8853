"""A node of a pair by replication that can't know whether it has the newest store waits."""

from __future__ import annotations

import errno
from typing import Any

import attrs
import pytest
import trio

from meshq import Broker, ReplicationBackup, ReplicationPrimary
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._standing_format import Standing
from tests.ha.replicated import Machines, machines, url_of


def primary(ground: Machines, **settings: Any) -> Broker:
    """Make the primary, which asks before it serves, and does not hold up the test."""
    cluster = {"static_connectors": [url_of("b")], "call_timeout": 0.5}
    ha = ReplicationPrimary(check_for_live_server=True, wait_for_activation=False)
    return ground.broker("a", ha, cluster=cluster, **settings)


def remembered(ground: Machines, name: str) -> Standing:
    """Return what a node remembers on its disk."""
    return NodeDirectory(ground.disks[name].copy(), "/data").standing()


def backup(ground: Machines, **settings: Any) -> Broker:
    """Make the backup, which knows no other node than the primary."""
    cluster = {"static_connectors": [url_of("a")], "call_timeout": 0.5}
    return ground.broker("b", ReplicationBackup(**settings), cluster=cluster)


async def pair(ground: Machines, nursery: trio.Nursery) -> tuple[Broker, Broker]:
    """Start both, and wait until the backup is in sync."""
    first, second = await ground.start(nursery, primary(ground)), await ground.start(nursery, backup(ground))
    await second.ha.wait_for(phase="in_sync", timeout=60)
    await first.ha.wait_for(in_sync=True, timeout=60)
    return first, second


async def taken_over(ground: Machines, nursery: trio.Nursery) -> Broker:
    """Let the backup serve, in epoch 2, after a crash of the primary."""
    first, second = await pair(ground, nursery)
    await ground.crash(first)
    await second.ha.wait_for(role="primary", phase="active", timeout=10)
    return second


async def in_sync_again(ground: Machines, nursery: trio.Nursery, second: Broker) -> Broker:
    """Let the primary come back, and be in sync with the one that serves."""
    again = await ground.start(nursery, primary(ground))
    await again.ha.wait_for(phase="in_sync", timeout=60)
    await second.ha.wait_for(in_sync=True, timeout=60)
    return again


async def test_a_primary_that_was_dropped_as_a_replica_does_not_serve_when_the_other_one_is_gone() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        again = await in_sync_again(ground, nursery, second)
        ground.threads["a"].close("write")
        async with ground.client_of("b") as client:
            # Confirmed by the other one alone.
            await client.send("q", b"after the drop")
            assert second.ha.unprotected
        await ground.crash(second)
        ground.threads["a"].open()
        await trio.sleep(20)
        assert again.state == "waiting"
        assert not remembered(ground, "a").in_sync


async def test_a_primary_that_followed_and_starts_anew_waits_for_the_one_that_served() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        again = await in_sync_again(ground, nursery, second)
        await ground.crash(again)
        async with ground.client_of("b") as client:
            await client.send("q", b"without it")
        await ground.crash(second)
        # As a process that is killed leaves it.
        known = attrs.evolve(remembered(ground, "a"), in_sync=True)
        NodeDirectory(ground.disks["a"].mount(), "/data").remember(known)
        for asks in (True, False):
            ha = ReplicationPrimary(check_for_live_server=asks, wait_for_activation=False)
            again = await ground.start(nursery, ground.broker("a", ha))
            await trio.sleep(20)
            assert (again.state, remembered(ground, "a")) == ("waiting", known)
            await ground.crash(again)


async def test_a_primary_does_not_serve_while_the_one_that_serves_refuses_it() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        spare = ground.broker("c", ReplicationBackup(), cluster={"static_connectors": [url_of("b")]})
        await ground.start(nursery, spare)
        await spare.ha.wait_for(phase="in_sync", timeout=60)
        again = await ground.start(nursery, primary(ground))
        await trio.sleep(20)
        assert (again.state, second.state, spare.ha.phase) == ("waiting", "active", "in_sync")


async def test_an_epoch_that_was_named_is_remembered_over_a_restart_in_the_middle_of_a_copy() -> None:
    async with machines() as (ground, nursery):
        second = await taken_over(ground, nursery)
        ground.threads["b"].close("_read")
        again = await ground.start(nursery, primary(ground))
        await again.ha.wait_for(phase="syncing", timeout=10)
        await ground.crash(again)
        await ground.crash(second)
        found = remembered(ground, "a")
        assert (found.epoch, found.named, found.acted) == (1, 2, True)
        again = await ground.start(nursery, primary(ground))
        await trio.sleep(20)
        assert again.state == "waiting"


async def test_a_primary_that_was_stopped_cleanly_and_has_handed_over_does_not_start_alone() -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        await first.stop()
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        async with ground.client_of("b") as client:
            await client.send("q", b"only there")
        await second.stop()
        assert not remembered(ground, "a").acted
        again = await ground.start(nursery, primary(ground))
        await trio.sleep(20)
        assert again.state == "waiting"
        # The other one comes back, and is the newer one.
        second = await ground.start(nursery, backup(ground))
        await second.ha.wait_for(role="primary", phase="active", timeout=20)
        await again.ha.wait_for(phase="in_sync", timeout=60)


@pytest.mark.parametrize("returns", [True, False])
async def test_a_replica_whose_disk_fails_as_it_takes_over_leaves_the_role_to_a_primary_that_returns(
    returns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machines() as (ground, nursery):
        first, second = await pair(ground, nursery)
        remember, full = NodeDirectory.remember, [second._run._activation._directory]  # type: ignore[union-attr]

        def stored(directory: NodeDirectory, standing: Standing) -> None:
            if directory in full:
                raise OSError(errno.ENOSPC, "no space left on device")
            remember(directory, standing)

        monkeypatch.setattr(NodeDirectory, "remember", stored)
        await ground.crash(first)
        await trio.sleep(5)
        assert second.state == "waiting" and "no space" in second.ha.last_error
        if not returns:
            full.clear()
            await second.ha.wait_for(phase="active", timeout=10)
            return
        again = await ground.start(nursery, primary(ground))
        await again.ha.wait_for(phase="active", timeout=30)
        full.clear()
        await second.ha.wait_for(phase="in_sync", timeout=60)
