"""A host of backups with stores of their own: what it remembers, what it begins again, and what it sets aside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq.errors import DamagedError
from meshq.ha.colocated import BackupRequest, KeptBackup, KeptBackups, encode_epoch
from meshq.ha.replication import NodeDirectory
from meshq.ha.replication._standing_format import Standing
from meshq.node.hosting._hosted_settings import backup_request
from meshq.node.hosting._remembering_host import RememberingHost
from meshq.testing import SimDisk
from tests.ha.colocated import until
from tests.ha.replicated import Machines, machines
from tests.ha.test_backup_host import Waiting, decided
from tests.ha.test_colocated_replicas import node, replicated


@asynccontextmanager
async def host(ground: Machines, monkeypatch: pytest.MonkeyPatch, **policy: Any) -> AsyncIterator[RememberingHost]:
    """A life of a host with fake backups, on the disk of b."""
    monkeypatch.setattr(Waiting, "stops", None)
    monkeypatch.setattr(Waiting, "stopped", [], raising=False)
    own: Any = node(ground, "b", replicated(**policy))._settings
    found = RememberingHost(own, own.ha, ground.env("b"), Waiting, lambda *told, **about: None)
    async with found.serving():
        await trio.testing.wait_all_tasks_blocked()
        yield found


def asked(ground: Machines, name: str, **settings: Any) -> BackupRequest:
    own: Any = node(ground, name, replicated(), **settings)._settings
    return backup_request(own, own.ha, name.encode() * 16, "tcp://127.0.0.1:1")


def names(found: RememberingHost) -> list[tuple[str, str]]:
    return [(one.name, one.requester) for one in found.backups]


def remember(ground: Machines, number: int, **standing: Any) -> None:
    """Let the store of a backup say what it is."""
    disk = ground.disks["b"].mount()
    NodeDirectory(disk, f"/data/colocated_backup_{number}").remember(Standing(**standing))


async def end(found: RememberingHost, request: BackupRequest, epoch: int) -> None:
    found.end(request.node_id, encode_epoch(epoch))
    await trio.testing.wait_all_tasks_blocked()


async def test_backups_of_before_are_begun_again_also_too_many_and_their_numbers_are_given_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        async with host(ground, monkeypatch, max_backups=2) as b:
            assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
            assert await decided(b, asked(ground, "c")) == ("colocated_backup_2", "")
        disk = ground.disks["b"]
        disk.faults.inject("names", times=2)
        async with host(ground, monkeypatch, max_backups=1) as b:
            told: list[Any] = []
            request = attrs.evolve(asked(ground, "a"), name="d", node_id="d" * 32)
            b.begin(request.node_id, request.encode(), lambda *one: told.append(one))
            await trio.testing.wait_all_tasks_blocked()
            # Nothing is decided before the disk has said what there is.
            assert told == [] and b.backups == ()
            await until(lambda: told)
            assert told[0][0] == "" and "max_backups" in told[0][1]
            assert names(b) == [("colocated_backup_1", "a"), ("colocated_backup_2", "c")]
            assert b.values(asked(ground, "c").node_id)["mine"] == "colocated_backup_2"
            assert b._plan.places_of(asked(ground, "c").node_id).place == 2
            remember(ground, 1, epoch=1)
            remember(ground, 2, epoch=1)
            await end(b, asked(ground, "a"), 1)
            await end(b, asked(ground, "c"), 1)
            assert names(b) == []
        async with host(ground, monkeypatch, max_backups=1) as b:
            assert names(b) == []
            assert await decided(b, request) == ("colocated_backup_3", "")


@pytest.mark.parametrize(
    ("standing", "ends"),
    [
        ({"epoch": 4}, True),
        ({"epoch": 5, "in_sync": True}, True),
        ({"epoch": 5, "acted": True}, False),
        ({"epoch": 6, "acted": True}, False),
        ({"epoch": 6}, False),
    ],
)
async def test_a_store_that_may_be_the_newest_is_not_set_aside(
    standing: dict[str, Any], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        remember(ground, 1, **standing)
        await end(b, asked(ground, "a"), 5)
        found = [one for one in ground.disks["b"].names("/data") if "colocated" in one]
        assert found == (["oldreplica.colocated_backup_1"] if ends else ["colocated_backup_1"])
        assert names(b) == ([] if ends else [("colocated_backup_1", "a")])


@pytest.mark.parametrize("undone", [False, True])
async def test_a_backup_whose_directory_is_renamed_runs_no_more_although_the_disk_fails_then(
    undone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machines() as (ground, _):
        disk = ground.disks["b"]
        async with host(ground, monkeypatch) as b:
            await decided(b, asked(ground, "a"))
            remember(ground, 1, epoch=4)
            disk.faults.inject("sync_directory", path="/data", times=1)
            await end(b, asked(ground, "a"), 5)
            assert names(b) == [] and not disk.faults.injections
            assert [one for one in disk.names("/data") if "colocated" in one] == ["oldreplica.colocated_backup_1"]
            if undone:
                # As a loss of power may leave it.
                disk.mount().move_directory("/data/oldreplica.colocated_backup_1", "/data/colocated_backup_1")
        async with host(ground, monkeypatch) as b:
            assert names(b) == ([("colocated_backup_1", "a")] if undone else [])
            await end(b, asked(ground, "a"), 5)
            assert names(b) == []
            assert await decided(b, asked(ground, "a")) == ("colocated_backup_2", "")


async def test_a_backup_that_is_begun_again_instead_of_being_set_aside_is_remembered_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        disk = ground.disks["b"]
        await decided(b, asked(ground, "a"))
        remember(ground, 1, epoch=4)
        disk.faults.inject("move_directory", times=2)
        disk.faults.inject("replace", path="hosted", times=1)
        await end(b, asked(ground, "a"), 5)
        # It can't be remembered: its number and its ports are held, until its node asks for it.
        assert names(b) == [] and [*b._held] == [1]
        assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
        await end(b, asked(ground, "a"), 5)
        assert names(b) == [("colocated_backup_1", "a")] and "hosted" in disk.names("/data/colocated_backup_1")


async def test_a_backup_that_takes_over_while_it_is_told_to_end_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        remember(ground, 1, epoch=5)

        async def take_over() -> None:
            remember(ground, 1, epoch=6, acted=True)

        monkeypatch.setattr(Waiting, "stops", take_over)
        await end(b, asked(ground, "a"), 5)
        assert Waiting.stopped == ["colocated_backup_1"]
        assert names(b) == [("colocated_backup_1", "a")] and b.backups[0].state == "waiting"


async def test_a_node_with_other_settings_gets_them_for_the_backup_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _):
        async with host(ground, monkeypatch) as b:
            await decided(b, asked(ground, "a"))
            changed = asked(ground, "a", memory_limit=77_000_000)
            assert await decided(b, changed) == ("colocated_backup_1", "")
            assert Waiting.stopped == ["colocated_backup_1"]
            assert b.values(changed.node_id)["mine_request"] == changed.digest
            # One that serves keeps its settings, and no request that is refused changes anything.
            b._hosted[changed.node_id].broker.state = "active"  # type: ignore[misc]
            name, why = await decided(b, asked(ground, "a"))
            assert name == "" and "serves here" in why
        async with host(ground, monkeypatch) as b:
            assert b.values(changed.node_id)["mine_request"] == changed.digest


async def test_a_backup_that_ends_is_begun_again_and_one_that_is_not_remembered_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        ground.disks["b"].faults.inject("replace", path="hosted", times=1)
        name, why = await decided(b, asked(ground, "a"))
        assert name == "" and "can't remember" in why and b.backups == ()
        assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
        fake: Any = b._hosted[asked(ground, "a").node_id].broker
        fake.over.set()
        await trio.sleep(2)
        again: Any = b._hosted[asked(ground, "a").node_id].broker
        assert again is not fake and names(b) == [("colocated_backup_1", "a")]


async def test_a_request_that_is_refused_because_the_disk_fails_changes_nothing_for_the_next_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        faults = ground.disks["b"].faults
        async with host(ground, monkeypatch, max_backups=2) as b:
            assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
            # The file is in its place when the directory's sync fails: of a new backup, and with other settings.
            faults.inject("sync_directory", path="colocated_backup_2", times=1)
            name, why = await decided(b, asked(ground, "c"))
            assert name == "" and "can't remember" in why and not faults.injections
            faults.inject("sync_directory", path="colocated_backup_1", times=1)
            changed = asked(ground, "a", memory_limit=77_000_000)
            name, why = await decided(b, changed)
            assert name == "" and "can't remember" in why and not faults.injections
        async with host(ground, monkeypatch, max_backups=2) as b:
            assert names(b) == [("colocated_backup_1", "a")]
            assert b.values(changed.node_id)["mine_request"] == asked(ground, "a").digest


def test_what_a_host_remembers_is_read_as_it_was_written_or_named() -> None:
    kept, disk = KeptBackup(number=7, place=2, request=b"\0x"), SimDisk()
    assert KeptBackup.decode(7, kept.encode(), "f") == kept
    for wrong in (b"", kept.encode()[:-1], kept.encode().replace(b"2", b"3"), b"0\n{}"):
        with pytest.raises(DamagedError):
            KeptBackup.decode(7, wrong, "f")
    backups = KeptBackups(disk, "/h")
    assert backups.look().latest == 0
    backups.keep(kept, None)
    backups.keep(attrs.evolve(kept, number=11), None)
    backups.set_aside(11)
    backups.sync()
    found = backups.look()
    assert (found.latest, found.backups, found.damaged) == (11, (kept,), ())
