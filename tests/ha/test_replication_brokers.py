"""Two brokers with a store each: copy, takeover, hand-over, failback, and clients that go on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from meshq import (
    Client,
    ClusterConnection,
    MajorityVote,
    Message,
    NotActiveError,
    RefusedError,
    ReplicationBackup,
    ReplicationPrimary,
    SettingsError,
    StoreDirectories,
)
from meshq.notifications import Notification
from meshq.settings import JournalSettings
from meshq.testing import MemoryQuorum
from tests.ha.replicated import Machines, machines


async def bodies(client: Client, count: int, queue: str = "q") -> list[bytes]:
    """Consume so many messages."""
    async with client.consumer(queue) as consumer:
        found: list[bytes] = []
        while len(found) < count:
            found += [bytes(one.body) for one in await consumer.receive_many(count - len(found), timeout=20)]
        await trio.testing.wait_all_tasks_blocked()
        return found


async def test_a_backup_takes_over_after_a_crash_with_the_durable_messages_and_the_same_client_goes_on() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        assert (first.state, second.state) == ("active", "waiting")
        assert (first.ha.role, first.ha.phase, first.ha.in_sync) == ("primary", "active", ("a", "b"))
        assert (second.ha.role, second.ha.phase, second.ha.in_sync) == ("backup", "in_sync", ("a", "b"))
        assert second.ha.acting is not None and second.ha.acting.name == "a"
        async with ground.client() as client:
            for number in range(20):
                await client.send("q", Message(b"%d" % number))
            node_id = first.node_id
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            assert (second.node_id, second.ha.epoch, second.ha.unprotected) == (node_id, 2, True)
            assert await bodies(client, 20) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_copy_has_messages_duplicate_ids_transactions_and_large_bodies(encrypted: bool) -> None:
    keys: dict[str, Any] = {"journal": JournalSettings(encryption_keys=[bytes(32)])} if encrypted else {}
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(), **keys))
        async with ground.client() as client:
            await client.send_many("q", [Message(b"%d" % number) for number in range(50)])
            async with client.consumer("q") as consumer:
                for one in await consumer.receive_many(10, timeout=5):
                    await consumer.ack(one, confirm=True)
            await client.send("other", Message(b"once", duplicate_id="d1"))
            await client.send("large", Message(b"L" * 700_000))
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup(), **keys))
            await second.ha.wait_for(phase="in_sync", timeout=60)
            await client.send("large", Message(b"M" * 700_000))
            await client.send("other", Message(b"twice", duplicate_id="d2"))
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            assert await bodies(client, 40) == [b"%d" % number for number in range(10, 50)]
            assert await bodies(client, 2, "large") == [b"L" * 700_000, b"M" * 700_000]
            for duplicate_id in ("d1", "d2"):
                await client.send("other", Message(b"again", duplicate_id=duplicate_id))
            assert await bodies(client, 2, "other") == [b"once", b"twice"]
            # Nothing was acknowledged, and nothing has come a second time.
            assert (await client.queue("other")).ready == 2


async def test_a_clean_stop_hands_over_at_once() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        changes = second.events()
        async with ground.client() as client:
            await client.send("q", Message(b"x"))
            began = trio.current_time()
            await first.stop()
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            assert trio.current_time() - began < 1
            assert await bodies(client, 1) == [b"x"]
        reasons = [one.reason async for one in until(changes, "role_changed")]  # type: ignore[attr-defined]
        assert reasons == ["stopped"]


async def until(changes: Any, kind: str) -> Any:
    """Give the notifications of a kind, up to the first one."""
    async for one in changes:
        if isinstance(one, Notification) and one.kind == kind:
            yield one
            return


@pytest.mark.slow
async def test_a_role_goes_to_the_replica_on_an_order_and_back_again() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client() as client:
            await client.send("q", Message(b"one"))
            await first.ha.fail_over(timeout=20)
            assert (second.state, second.ha.epoch, first.state) == ("active", 2, "waiting")
            await client.send("q", Message(b"two"))
            await first.ha.wait_for(phase="in_sync", timeout=60)
            await client.send("q", Message(b"three"))
            await second.ha.fail_back(timeout=20)
            assert (first.state, first.ha.epoch, second.state) == ("active", 3, "waiting")
            await second.ha.wait_for(phase="in_sync", timeout=60)
            assert await bodies(client, 3) == [b"one", b"two", b"three"]


@pytest.mark.slow
async def test_a_primary_that_comes_back_becomes_the_replica_and_gets_its_role_back_where_that_is_allowed() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery, allow_failback=True)
        async with ground.client() as client:
            await client.send("q", Message(b"one"))
            await ground.crash(first)
            await second.ha.wait_for(role="primary", phase="active", timeout=10)
            await client.send("q", Message(b"two"))
            again = await ground.start(nursery, ground.broker("a", ReplicationPrimary(check_for_live_server=True)))
            assert (again.state, again.ha.epoch) == ("active", 3)
            await second.ha.wait_for(phase="in_sync", timeout=60)
            assert await bodies(client, 2) == [b"one", b"two"]
        names = ground.disks["a"].names("/data")
        assert "oldreplica.1" in names and "oldreplica.2" not in names


@pytest.mark.slow
async def test_without_leave_a_primary_that_comes_back_stays_the_replica() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        await ground.crash(first)
        await second.ha.wait_for(role="primary", phase="active", timeout=10)
        policy = ReplicationPrimary(check_for_live_server=True, wait_for_activation=False)
        again = await ground.start(nursery, ground.broker("a", policy))
        await again.ha.wait_for(phase="in_sync", timeout=60)
        await trio.sleep(60)
        assert (again.state, second.state, second.ha.in_sync) == ("waiting", "active", ("b", "a"))
        with pytest.raises(NotActiveError):
            await again.ha.fail_over()


async def test_without_a_replica_nobody_takes_over_and_the_primary_says_so() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary()))
        assert first.ha.unprotected and first.ha.in_sync == ("a",)
        for call in (first.ha.fail_over, first.ha.fail_back):
            with pytest.raises(RefusedError):
                await call()
        with pytest.raises(NotActiveError):
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup(group_name="x")))
            await second.ha.wait_for(phase="in_sync", timeout=60)
            await second.ha.fail_over()


async def test_a_backup_that_was_never_in_sync_waits_for_ever() -> None:
    async with machines() as (ground, nursery):
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup()))
        await trio.sleep(60)
        assert (second.state, second.ha.phase) == ("waiting", "searching")


@pytest.mark.slow
async def test_groups_have_to_be_equal_where_both_are_given() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(group_name="fish")))
        second = await ground.start(nursery, ground.broker("b", ReplicationBackup(group_name="bird")))
        await trio.sleep(12)
        assert second.ha.phase == "searching" and "bird" in second.ha.last_error and "fish" in second.ha.last_error
        third = await ground.start(nursery, ground.broker("c", ReplicationBackup()))
        await third.ha.wait_for(phase="in_sync", timeout=60)
        assert first.ha.in_sync == ("a", "c")


@pytest.mark.slow
async def test_one_replica_at_a_time_and_a_spare_takes_its_place() -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        third = await ground.start(nursery, ground.broker("c", ReplicationBackup()))
        await trio.sleep(12)
        assert (third.ha.phase, first.ha.in_sync) == ("searching", ("a", "b"))
        await ground.crash(second)
        await third.ha.wait_for(phase="in_sync", timeout=60)
        assert first.ha.in_sync == ("a", "c")
        await ground.crash(first)
        await third.ha.wait_for(role="primary", phase="active", timeout=20)


@pytest.mark.slow
async def test_nodes_with_different_keys_do_not_pair_and_nothing_is_changed() -> None:
    async with machines() as (ground, nursery):
        keys = {name: JournalSettings(encryption_keys=[bytes([number]) * 32]) for number, name in enumerate("ab")}
        first = await ground.start(nursery, ground.broker("a", ReplicationPrimary(), journal=keys["a"]))
        for policy in (keys["b"], None):
            second = await ground.start(nursery, ground.broker("b", ReplicationBackup(), journal=policy))
            await trio.sleep(10)
            assert second.ha.phase == "searching" and "journal.encryption_keys" in second.ha.last_error
            assert "journal" not in ground.disks["b"].names("/data")
            await ground.crash(second)
        assert first.ha.in_sync == ("a",)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("group_name", ""),
        ("cluster_name", 3),
        ("initial_replication_sync_timeout", 0),
        ("max_saved_replicated_journals", -1),
        ("max_saved_replicated_journals", 1.5),
        ("retry_interval", 0),
        ("max_retry_interval", 0.1),
        ("vote_on_replication_failure", 1),
        ("quorum", 3),
        ("quorum", None),
        ("quorum", MajorityVote(lease=1)),
        ("check_hosts", ("h:1",)),
        ("check_hosts", ("h",)),
        ("check_hosts_period", 0),
        ("check_hosts_timeout", 0),
        ("wait_for_activation", 1),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_both_policies(setting: str, value: Any) -> None:
    for policy in (ReplicationPrimary, ReplicationBackup):
        with pytest.raises(SettingsError) as caught:
            policy(**{setting: value})
        assert caught.value.setting == setting


@pytest.mark.parametrize(
    ("policy", "setting", "value"),
    [
        (ReplicationPrimary, "coordination_id", "x"),
        (partial(ReplicationPrimary, quorum=MemoryQuorum()), "coordination_id", ""),
        (partial(ReplicationPrimary, quorum=MemoryQuorum()), "coordination_id", "x" * 251),
        (ReplicationPrimary, "check_for_live_server", None),
        (ReplicationBackup, "scale_down", object()),
        (ReplicationBackup, "allow_failback", 1),
        (ReplicationBackup, "restart_backup", "yes"),
    ],
)
def test_a_setting_of_one_policy_is_checked(policy: Any, setting: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        policy(**{setting: value})
    assert caught.value.setting == setting


def test_the_defaults_are_those_that_are_promised() -> None:
    primary, backup = ReplicationPrimary(), ReplicationBackup()
    for policy in (primary, backup):
        assert (policy.group_name, policy.cluster_name, policy.initial_replication_sync_timeout) == (None, None, 30.0)
        assert (policy.max_saved_replicated_journals, policy.retry_interval, policy.max_retry_interval) == (2, 0.5, 5.0)
        assert policy.vote_on_replication_failure is False
        assert policy.quorum == MajorityVote()
    assert primary.coordination_id is None
    assert (primary.check_for_live_server, primary.wait_for_activation) == (False, True)
    assert (backup.allow_failback, backup.restart_backup, backup.wait_for_activation) == (False, True, False)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"data_dir": None}, "ha"),
        ({"directories": StoreDirectories(journal="/j")}, "directories"),
        ({"services": []}, "ha"),
        ({"services": [ClusterConnection("other", password="p")]}, "static_connectors"),
        ({"ha": ReplicationBackup(cluster_name="x")}, "cluster_name"),
    ],
)
def test_a_broker_that_can_not_replicate_is_refused_when_it_is_built(changed: dict[str, Any], setting: str) -> None:
    ground = Machines()
    with pytest.raises(SettingsError) as caught:
        ground.broker("b", changed.pop("ha", ReplicationBackup()), **changed)
    assert caught.value.setting == setting
