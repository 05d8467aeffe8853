"""A pair by replication in bad luck: slow replicas, broken disks, nodes that come back, and copies that are cut off."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from meshq import (
    Broker,
    BusyError,
    Client,
    LiveOnly,
    ReplicationBackup,
    ReplicationPrimary,
    SettingsError,
)
from meshq.errors import UnblockedError
from meshq.ha.replication._feeder import Feeder
from meshq.notifications import Notification
from tests.ha.replicated import machines


async def told(broker: Broker, seen: list[Any]) -> None:
    """Collect what a broker notifies of."""
    async for one in broker.events():
        if isinstance(one, Notification):
            seen.append(one)


def kinds(seen: list[Any], *wanted: str) -> list[tuple[Any, ...]]:
    """Return the notifications of these kinds, with what tells them apart."""
    fields = ("replica", "members", "unprotected", "reason")
    return [
        (one.kind, *(getattr(one, field) for field in fields if hasattr(one, field)))
        for one in seen
        if one.kind in wanted
    ]


async def ready(client: Client) -> int:
    """Return how many messages wait; the session may have to be made anew first."""
    try:
        return (await client.queue("q")).ready
    except UnblockedError:
        return (await client.queue("q")).ready


async def test_a_confirm_and_a_delivery_wait_for_the_replica_and_a_slow_one_is_dropped_after_the_call_timeout() -> None:
    async with machines() as (ground, nursery):
        seen: list[Any] = []
        first = ground.broker("a", ReplicationPrimary(), cluster={"call_timeout": 3})
        nursery.start_soon(told, first, seen)
        await ground.start(nursery, first)
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await first.ha.wait_for(in_sync=True, timeout=60)
        async with ground.client() as client, client.consumer("q") as consumer:
            await client.send("q", b"one")
            assert (await consumer.receive(timeout=5)) is not None
            gate = ground.threads["b"].close("write")
            before = trio.current_time()
            got: list[float] = []

            async def receive() -> None:
                await consumer.receive()
                got.append(trio.current_time())

            nursery.start_soon(receive)
            await client.send("q", b"two")
            assert trio.current_time() - before == pytest.approx(3, abs=0.2)
            await trio.testing.wait_all_tasks_blocked()
            assert got and got[0] - before == pytest.approx(3, abs=0.2)
            gate.set()
            assert first.ha.unprotected and first.ha.replicas[0].dropped_reason == "slow"
            # It comes back by itself.
            await first.ha.wait_for(in_sync=True, timeout=60)
            await second.ha.wait_for(phase="in_sync", timeout=10)
            assert second.state == "waiting"
        assert kinds(seen, "replica_dropped", "in_sync_changed") == [
            ("in_sync_changed", ("a", "b"), False),
            ("replica_dropped", "b", "slow"),
            ("in_sync_changed", ("a",), True),
            ("in_sync_changed", ("a", "b"), False),
        ]


async def test_the_progress_of_a_copy_is_told_once_a_second_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, nursery):
        seen: list[Any] = []
        first = ground.broker("a", ReplicationPrimary())
        nursery.start_soon(told, first, seen)
        await ground.start(nursery, first)
        async with ground.client() as client:
            for number in range(8):
                await client.send("q", b"%d" % number)
            real = Feeder._room

            async def slow(self: Feeder) -> None:
                await trio.sleep(0.4)
                await real(self)

            monkeypatch.setattr(Feeder, "_room", slow)
            await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await first.ha.wait_for(in_sync=True, timeout=60)
        (begun,) = [one for one in seen if one.kind == "sync_begun"]
        steps = [one for one in seen if one.kind == "sync_progress"]
        left = [(one.records_left, one.bytes_left) for one in steps]
        assert len(left) >= 2 and {one.replica for one in steps} == {"b"}
        assert all(one > other for one, other in pairwise([(begun.records, begun.bytes), *left]))
        (done,) = [one for one in seen if one.kind == "sync_done"]
        assert len(steps) <= done.seconds


async def test_the_end_of_a_sync_holds_confirms_for_its_time_and_then_the_traffic_goes_on() -> None:
    async with machines() as (ground, nursery):
        seen: list[Any] = []
        policy = ReplicationPrimary(initial_replication_sync_timeout=4)
        first = ground.broker("a", policy)
        nursery.start_soon(told, first, seen)
        await ground.start(nursery, first)
        async with ground.client() as client:
            await client.send("q", b"one")
            reading = ground.threads["a"].close("_read")
            await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await trio.sleep(1)
            # Behind the copy, which begins before it; the disk of the replica takes the copy, and nothing more.
            await client.send("q", b"behind")
            gate = ground.threads["b"].close("write")
            ground.threads["a"].open()
            assert reading.is_set()
            await trio.sleep(1)
            before = trio.current_time()
            await client.send("q", b"two")
            assert 2.5 < trio.current_time() - before < 4.5
            assert kinds(seen, "sync_begun", "sync_failed", "replica_dropped", "in_sync_changed") == [
                ("sync_begun", "b"),
                ("sync_failed", "b", "sync_timeout"),
                ("replica_dropped", "b", "sync_timeout"),
            ]
            gate.set()
            ground.threads["b"].open()
            await first.ha.wait_for(in_sync=True, timeout=60)
            assert await ready(client) == 3


async def test_a_backup_that_serves_holds_confirms_at_the_end_of_a_sync_for_the_time_of_its_own_policy() -> None:
    """F40."""
    async with machines() as (ground, nursery):
        assert ReplicationBackup().initial_replication_sync_timeout == 30.0
        first, second = await ground.pair(nursery, initial_replication_sync_timeout=4)
        seen: list[Any] = []
        nursery.start_soon(told, second, seen)
        await ground.crash(first)
        await second.ha.wait_for(phase="active", timeout=60)
        async with ground.client_of("b") as client:
            await client.send("q", b"one")
            reading = ground.threads["b"].close("_read")
            policy = ReplicationPrimary(check_for_live_server=True, wait_for_activation=False)
            await ground.start(nursery, ground.broker("a", policy))
            await trio.sleep(1)
            await client.send("q", b"behind")
            ground.threads["a"].close("write")
            ground.threads["b"].open()
            assert reading.is_set()
            await trio.sleep(1)
            before = trio.current_time()
            await client.send("q", b"two")
            assert 2.5 < trio.current_time() - before < 4.5
            assert kinds(seen, "sync_failed", "replica_dropped") == [
                ("sync_failed", "a", "sync_timeout"),
                ("replica_dropped", "a", "sync_timeout"),
            ]
            ground.threads["a"].open()


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
async def test_a_replica_whose_disk_fails_or_is_full_is_dropped_and_the_primary_goes_on(full: bool) -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client() as client:
            await client.send("q", b"one")
            if full:
                ground.disks["b"].capacity_bytes = 0
                for _ in range(200):
                    await client.send("q", b"x" * 100_000)
            else:
                ground.disks["b"].faults.inject("sync", path=".seg")
                await client.send("q", b"two")
            await first.ha.wait_for(in_sync=False, timeout=60)
            assert first.ha.replicas[0].dropped_reason == ("full_disk" if full else "disk")
            assert first.state == "active" and second.state == "waiting"
            ground.disks["b"].capacity_bytes = float("inf")
            await first.ha.wait_for(in_sync=True, timeout=120)


async def test_a_primary_that_comes_back_without_asking_steps_back_as_soon_as_it_meets_the_one_that_took_over() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client() as client:
            await client.send("q", b"one")
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            await client.send("q", b"two")
            again = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
            assert (again.state, again.ha.epoch, second.ha.epoch) == ("active", 2, 2)
            await again.ha.wait_for(phase="in_sync", timeout=60)
            assert (again.state, second.state) == ("waiting", "active")
            assert await ready(client) == 2
        assert "oldreplica.1" in ground.disks["a"].names("/data")


async def test_so_many_old_stores_are_kept_as_the_policy_says() -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        # The first one has no store yet that could be kept; four starts as a replica come after it.
        for _ in range(5):
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await second.ha.wait_for(phase="in_sync", timeout=60)
            await ground.crash(second)
        disk = ground.disks["b"]
        saved = [name for name in disk.names("/data") if name.startswith("oldreplica.")]
        assert saved == ["oldreplica.3", "oldreplica.4"]
        assert all(disk.names(f"/data/{name}/journal") for name in saved)


@pytest.mark.slow
async def test_a_replica_that_was_in_sync_serves_as_a_primary_or_alone_on_its_directory() -> None:
    for policy in (ReplicationPrimary(), None, LiveOnly()):
        async with machines() as (ground, nursery):
            first, second = await ground.pair(nursery)
            async with ground.client() as client:
                await client.send("q", b"one")
                await ground.crash(second)
                await ground.crash(first)
                again = await ground.start(nursery, ground.broker("b", policy))
                assert again.state == "active" and again.node_id == first.node_id
                assert await ready(client) == 1


async def test_a_backup_alone_waits_also_if_it_was_in_sync() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        await ground.crash(second)
        await ground.crash(first)
        again = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await trio.sleep(60)
        assert (again.state, again.ha.phase) == ("waiting", "searching")


@pytest.mark.slow
async def test_a_copy_that_is_cut_off_leaves_the_old_store_and_no_part_of_a_new_one() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client() as client:
            await client.send("q", b"one")
            await ground.crash(second)
            before = ground.disks["b"].names("/data/journal")
            gate = ground.threads["b"].close("install_copy")
            again = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await again.ha.wait_for(phase="syncing", timeout=60)
            await trio.sleep(1)
            await ground.crash(again)
            gate.set()
            assert ground.disks["b"].names("/data/journal") == before
            again = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
            await again.ha.wait_for(phase="in_sync", timeout=60)
            await ground.crash(first)
            await again.ha.wait_for(phase="active", timeout=60)
            assert await ready(client) == 1


async def test_a_backup_that_is_not_to_wait_again_stops_when_it_has_given_the_role_back() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery, allow_failback=True, restart_backup=False)
        await ground.crash(first)
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        again = await ground.start(nursery, ground.broker("a", ReplicationPrimary(check_for_live_server=True)))
        assert again.state == "active"
        await trio.sleep(1)
        assert second.state == "stopped"


async def test_two_brokers_on_one_directory_are_refused() -> None:
    async with machines() as (ground, nursery):
        await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        with pytest.raises(BusyError):
            async with ground.broker("b", ReplicationBackup(), acceptors=["tcp://127.0.0.1:7009"]):
                await trio.sleep_forever()


async def test_a_directory_that_a_pair_has_shared_is_refused() -> None:
    async with machines() as (ground, _):
        ground.disks["a"].make_directory("/data/epoch-3")
        with pytest.raises(SettingsError) as caught:
            async with ground.broker("a", ReplicationPrimary()):
                await trio.sleep_forever()
        assert caught.value.setting == "data_dir"


@pytest.mark.slow
async def test_three_changes_of_role_in_a_row_lose_nothing() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        nodes, sent = {"a": first, "b": second}, 0
        async with ground.client() as client:
            for name in ("a", "b", "a"):
                other = "b" if name == "a" else "a"
                for _ in range(10):
                    await client.send("q", b"%d" % sent)
                    sent += 1
                await ground.crash(nodes[name])
                await nodes[other].ha.wait_for(role="primary", phase="active", timeout=20)
                policy = (
                    ReplicationPrimary(check_for_live_server=True, wait_for_activation=False)
                    if name == "a"
                    else ReplicationBackup()
                )
                nodes[name] = await ground.start(nursery, ground.broker(name, policy))
                await nodes[name].ha.wait_for(phase="in_sync", timeout=60)
            assert await ready(client) == sent
            assert nodes["b"].ha.epoch == 4


@pytest.mark.slow
async def test_a_client_that_knows_one_node_learns_of_the_replica_and_goes_there() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client_of("a") as client:
            await client.send("q", b"one")
            await trio.sleep(5)
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            assert await ready(client) == 1


async def test_a_node_that_has_heard_of_a_later_epoch_never_serves_with_its_older_store() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        await ground.crash(first)
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        ground.threads["a"].close("install_copy")
        policy = ReplicationPrimary(check_for_live_server=True, wait_for_activation=False)
        again = await ground.start(nursery, ground.broker("a", policy))
        await again.ha.wait_for(phase="syncing", timeout=10)
        await ground.crash(second)
        await trio.sleep(20)
        assert again.state == "waiting"
