"""Which backup follows which primary by replication: groups, spares, and primaries that come later."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import (
    Broker,
    ClusterConnection,
    ReplicationBackup,
    ReplicationPrimary,
    RoleChanged,
    SettingsError,
    connect,
)
from meshq.testing import SimDisk
from tests.ha.replicated import GatedThreads, Machines, machines


def url(number: int) -> str:
    return f"tcp://127.0.0.1:{number}"


def node(ground: Machines, name: str, number: int, ha: Any, others: list[int], **settings: Any) -> Broker:
    """A node at a port, which knows the ports of others."""
    ground.disks.setdefault(name, SimDisk())
    ground.threads.setdefault(name, GatedThreads())
    cluster = {"static_connectors": [url(other) for other in others]}
    return ground.broker(name, ha, acceptors=[url(number)], cluster=cluster, **settings)


async def settled(*backups: Broker, pairs: int) -> dict[str, str]:
    """Wait until so many backups are in sync; return whom each of these follows."""
    with trio.fail_after(120):
        while sum(one.ha.phase == "in_sync" for one in backups) < pairs:  # noqa: ASYNC110 - each is looked at
            await trio.sleep(0.5)
    await trio.sleep(20)
    found = {one.name: one.ha.acting.name for one in backups if one.ha.phase == "in_sync" and one.ha.acting is not None}
    assert len(found) == pairs, found
    return found


@pytest.mark.slow
async def test_of_four_fish_backups_three_are_paired_and_both_bird_backups_are() -> None:
    groups = {"live1": "fish", "live2": "fish", "live3": "fish", "live4": "bird", "live5": "bird"}
    waiting = dict.fromkeys(("backup1", "backup2", "backup3", "backup4"), "fish")
    waiting |= dict.fromkeys(("backup5", "backup6"), "bird")
    ports = {name: 7100 + number for number, name in enumerate([*groups, *waiting])}
    lives = [ports[name] for name in groups]
    async with machines() as (ground, nursery):
        for name, group in groups.items():
            policy = ReplicationPrimary(group_name=group)
            await ground.start(nursery, node(ground, name, ports[name], policy, []))
        backups = []
        for name, group in waiting.items():
            policy = ReplicationBackup(group_name=group)
            backups.append(await ground.start(nursery, node(ground, name, ports[name], policy, lives)))
        found = await settled(*backups, pairs=5)
        assert sorted(found.values()) == ["live1", "live2", "live3", "live4", "live5"]
        assert {found["backup5"], found["backup6"]} == {"live4", "live5"}
        (spare,) = [one for one in backups if one.name not in found]
        assert waiting[spare.name] == "fish" and spare.state == "waiting"


async def test_a_primary_that_has_a_replica_refuses_and_the_spare_pairs_with_one_that_comes_later() -> None:
    async with machines() as (ground, nursery):
        first = await ground.start(nursery, node(ground, "a", 7101, ReplicationPrimary(), []))
        one = await ground.start(nursery, node(ground, "b", 7102, ReplicationBackup(), [7101, 7104]))
        assert await settled(one, pairs=1) == {"b": "a"}
        two = await ground.start(nursery, node(ground, "c", 7103, ReplicationBackup(), [7101, 7104]))
        # Any number of backups may wait for a node, which has one replica.
        await trio.sleep(20)
        assert two.state == "waiting" and two.ha.phase != "in_sync"
        assert [replica.name for replica in first.ha.replicas] == ["b"]
        later = await ground.start(nursery, node(ground, "d", 7104, ReplicationPrimary(), []))
        assert await settled(one, two, pairs=2) == {"b": "a", "c": "d"}
        # The new one has not taken the backup of the first one.
        assert [replica.name for replica in later.ha.replicas] == ["c"]
        assert [replica.name for replica in first.ha.replicas] == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize(("named", "other"), [(None, "first"), ("first", "first"), ("second", "second")])
@pytest.mark.parametrize("role", ["backup", "primary"])
async def test_a_node_looks_for_the_other_one_by_the_named_cluster_connection_or_the_first(
    role: str, named: str | None, other: str
) -> None:
    # The other node is known to one of two cluster connections.
    async with machines() as (ground, nursery):
        places = {name: [url(7101)] if name == other else [url(7199)] for name in ("first", "second")}
        services = [ClusterConnection(name, password="p", static_connectors=places[name]) for name in places]
        ground.disks["x"], ground.threads["x"] = SimDisk(), GatedThreads()
        acting = ReplicationPrimary() if role == "backup" else ReplicationBackup()
        if role == "backup":
            await ground.start(nursery, node(ground, "a", 7101, acting, []))
            policy: Any = ReplicationBackup(cluster_name=named)
            found = await ground.start(nursery, ground.broker("x", policy, acceptors=[url(7102)], services=services))
            assert await settled(found, pairs=1) == {"x": "a"}
        else:
            # A backup took over from this node's former life: who looks for it finds it, and does not serve.
            clusters = [7102]
            lost = await ground.start(
                nursery, ground.broker("x", ReplicationPrimary(), acceptors=[url(7102)], services=services)
            )
            backup = await ground.start(nursery, node(ground, "a", 7101, ReplicationBackup(), clusters))
            await settled(backup, pairs=1)
            await ground.crash(lost)
            await backup.ha.wait_for(phase="active", timeout=60)
            services = [ClusterConnection(name, password="p", static_connectors=places[name]) for name in places]
            policy = ReplicationPrimary(cluster_name=named, check_for_live_server=True, wait_for_activation=False)
            again = await ground.start(nursery, ground.broker("x", policy, acceptors=[url(7102)], services=services))
            await trio.sleep(20)
            assert (again.state, backup.state) == ("waiting", "active")


def test_a_cluster_that_is_not_there_can_t_be_named() -> None:
    for policy in (ReplicationPrimary(cluster_name="none"), ReplicationBackup(cluster_name="none")):
        with pytest.raises(SettingsError, match="one of the broker's cluster connections: c"):
            Machines().broker("a", policy)


async def numbers_at(ground: Machines, name: str, count: int) -> list[bytes]:
    """Consume what one node has."""
    async with ground.client_of(name) as client, client.consumer("q") as consumer:
        found: list[bytes] = []
        while len(found) < count and (batch := await consumer.receive_many(count, timeout=1)):
            await consumer.ack(*batch, confirm=True)
            found += [one.body for one in batch]
        return found


@pytest.mark.parametrize("searches", [True, False])
async def test_a_primary_that_does_not_look_serves_again_what_its_backup_has_served(searches: bool) -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery)
        async with ground.client() as client:
            for number in range(5):
                await client.send("q", b"%d" % number)
        await ground.crash(first)
        await second.ha.wait_for(phase="active", timeout=60)
        assert await numbers_at(ground, "b", 5) == [b"0", b"1", b"2", b"3", b"4"]
        # Unless it looks, nobody tells it, at a place that the other one does not know.
        policy = ReplicationPrimary(check_for_live_server=searches, wait_for_activation=False)
        known = [url(7002)] if searches else []
        place: dict[str, Any] = {"acceptors": [url(7105)], "cluster": {"static_connectors": known}}
        again = await ground.start(nursery, ground.broker("a", policy, **place))
        await trio.sleep(5)
        if searches:
            assert again.state == "waiting"
        else:
            assert again.state == "active"
            async with connect(url(7105), env=ground.env()) as client, client.consumer("q") as consumer:
                bodies: list[bytes] = []
                while len(bodies) < 5 and (batch := await consumer.receive_many(5, timeout=5)):
                    bodies += [one.body for one in batch]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_failback_in_order_needs_the_search_and_the_leave(allowed: bool, searches: bool) -> None:
    async with machines() as (ground, nursery):
        first, second = await ground.pair(nursery, allow_failback=allowed)
        await ground.crash(first)
        await second.ha.wait_for(phase="active", timeout=60)
        async with ground.client_of("b") as client:
            await client.send("q", b"of the backup's time")
        policy = ReplicationPrimary(check_for_live_server=searches, wait_for_activation=False)
        broker = ground.broker("a", policy)
        roles: list[RoleChanged] = []

        async def watch() -> None:
            async for event in broker.events():
                if isinstance(event, RoleChanged) and event.role == "primary":
                    roles.append(event)

        nursery.start_soon(watch)
        again = await ground.start(nursery, broker)
        await trio.sleep(15)
        if allowed and searches:
            assert [(one.reason, one.epoch) for one in roles] == [("failback", 3)]
            assert (again.state, second.state) == ("active", "waiting")
            assert await numbers_at(ground, "a", 1) == [b"of the backup's time"]
        elif searches:
            assert (roles, again.state, second.state, second.ha.epoch) == ([], "waiting", "active", 2)
        else:
            # It serves beside the other one, in the epoch that is over, until the two meet.
            assert (roles[0].reason, roles[0].epoch) == ("started", 2) and second.ha.epoch >= 2
