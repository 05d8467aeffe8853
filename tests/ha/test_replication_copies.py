"""What a replica has, from when on, and with whom it pairs."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from meshq import Broker, Message, ReplicationBackup, ReplicationPrimary, SettingsError
from meshq.env import real_env
from meshq.store import JournalRecord
from meshq.store.formats._layout_format import Layout
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import recover
from meshq.testing import SimDisk
from tests.ha.replicated import machines, url_of


def live_records(disk: SimDisk) -> list[JournalRecord]:
    """Return what a start right now would find in the store on a disk, without what is there for the disk's sake."""
    copy = disk.copy()
    layout = Layout("/data")
    found = recovered_records(copy, layout, recover(copy, layout, real_env().entropy), deleted=False)
    return [record for record in found if not record.tombstone]


@pytest.mark.slow
async def test_the_stores_of_a_pair_say_the_same() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        async with ground.client() as client:
            await client.send_many("q", [Message(b"%d" % number) for number in range(300)])
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await second.ha.wait_for(phase="in_sync", timeout=60)
            await client.send_many("q", [Message(b"%d" % number) for number in range(300)])
            async with client.consumer("q") as consumer:
                for one in await consumer.receive_many(100, timeout=5):
                    await consumer.ack(one)
                await client.send("q", b"last")
        await trio.sleep(1)
        assert first.ha.replicas[0].records_behind == second.ha.records_behind == 0
        assert live_records(ground.disks["a"]) == live_records(ground.disks["b"]) != []


@pytest.mark.slow
async def test_a_replica_that_is_still_copying_does_not_take_over_and_clients_do_not_wait_for_it() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        async with ground.client() as client:
            await client.send("q", b"one")
            gate = ground.threads["b"].close("begin")
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await trio.sleep(0.5)
            assert first.ha.replicas and not first.ha.replicas[0].in_sync and first.ha.unprotected
            await ground.crash(first)
            gate.set()
            await trio.sleep(60)
            assert (second.state, second.ha.phase) == ("waiting", "searching")
            again = await ground.start(nursery, ground.broker("a", ReplicationPrimary(check_for_live_server=True)))
            assert again.state == "active" and (await client.queue("q")).ready == 1


@pytest.mark.slow
async def test_clients_go_on_while_a_copy_is_made() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        async with ground.client() as client:
            body = b"x" * 200_000
            for _ in range(20):
                await client.send("q", body)
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            longest = 0.0
            while second.ha.phase != "in_sync":
                before = trio.current_time()
                await client.send("q", b"small")
                longest = max(longest, trio.current_time() - before)
            assert longest < 1
            assert first.ha.in_sync == ("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"password": "another"}, {"user": "another"}])
async def test_nodes_with_another_user_or_password_do_not_pair(other: dict[str, Any]) -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup(), cluster=other))
        await trio.sleep(60)
        assert (second.ha.phase, first.ha.in_sync) == ("searching", ("a",))
        assert "SecurityError" in second.ha.last_error


async def test_nodes_of_one_group_pair_at_once() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(group_name="fish")))
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup(group_name="fish")))
        await second.ha.wait_for(phase="in_sync", timeout=5)
        await first.ha.wait_for(in_sync=True, timeout=5)
        assert first.ha.in_sync == ("a", "b")


async def test_a_primary_that_looks_and_finds_nobody_serves() -> None:
    async with machines() as (ground, nursery):
        before = trio.current_time()
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(check_for_live_server=True)))
        assert first.state == "active" and trio.current_time() - before < 1


def test_a_policy_is_one_of_a_few_kinds() -> None:
    with pytest.raises(SettingsError) as caught:
        Broker("a", data_dir="/data", acceptors=[url_of("a")], ha="replication")  # type: ignore[arg-type]
    assert caught.value.setting == "ha"
    assert [ReplicationPrimary.kind, ReplicationBackup.kind] == ["replication_primary", "replication_backup"]


async def test_a_node_stops_cleanly_while_its_replica_copies() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        async with ground.client_of("a") as client:
            await client.send_many("q", [Message(bytes(60_000), durable=True) for _ in range(30)])
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await second.ha.wait_for(phase="syncing", timeout=60)
        while not any(one.server.session is None for one in first._run.node.listeners.connections):  # type: ignore[union-attr]
            await trio.lowlevel.checkpoint()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        await first.stop()
        assert first.state == "stopped"
