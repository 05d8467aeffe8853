"""The end of a backup whose node is gone for good, by hand: what refuses it, and where its store is afterwards."""

from __future__ import annotations

import math
from typing import Any, cast

import attrs
import pytest
import trio

from meshq import Broker, CallTimeoutError, EndedBackup, NotActiveError, NotFoundError, RefusedError, SettingsError
from meshq.ha.colocated import BackupRequest
from meshq.node.hosting import _backup_host as ended_backups
from meshq.node.hosting._backup_host import BackupHost
from tests.ha.colocated import shared, started, until
from tests.ha.replicated import machines
from tests.ha.test_backup_host import Waiting, asked, decided, host
from tests.ha.test_colocated_hosts import SECURED, directories, running
from tests.ha.test_remembering_host import asked as replica_of
from tests.ha.test_remembering_host import host as remembering
from tests.ha.test_remembering_host import names
from tests.ha.test_shared_store_brokers import pair

BACKUP = "colocated_backup_1"
ASIDE = f"oldreplica.{BACKUP}"


async def end(host: BackupHost, name: str = BACKUP, *, force: bool = False) -> EndedBackup:
    """End a backup by hand, and return what is told of it."""
    told: list[Any] = []
    host.end_by_hand(name, told.append, force=force)
    await until(lambda: told)
    if isinstance(told[0], EndedBackup):
        return told[0]
    raise told[0]


def gone(request: BackupRequest) -> BackupRequest:
    """The request of a node at a place where nobody answers."""
    return attrs.evolve(request, url="tcp://127.0.0.1:7999")


# -- with a shared store


async def test_the_store_of_a_backup_that_is_ended_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground, host(ground, monkeypatch) as b:
        request = gone(asked(ground, "a"))
        await decided(b, request)
        with pytest.raises(NotFoundError, match="runs no backup 'x'; it runs: colocated_backup_1"):
            await end(b, "x")
        ended = await end(b)
        assert ended == EndedBackup(name=BACKUP, requester="a", node_id=request.node_id, directory="/a")
        assert Waiting.stopped == [BACKUP] and b.backups == ()
        # There is room for another one.
        assert await decided(b, asked(ground, "c")) == ("colocated_backup_2", "")


async def test_the_backup_of_a_node_that_answers_is_ended_by_force_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground, host(ground, monkeypatch) as b, trio.open_nursery() as nursery:
        listener = await ground.env().network.listen("127.0.0.1", 7998)
        nursery.start_soon(listener.accept)
        for url, why in (
            ("tcp://127.0.0.1:7998", "'a' answers at tcp://127.0.0.1:7998"),
            ("no place", "'a' has told no place"),
        ):
            await decided(b, attrs.evolve(asked(ground, "a"), url=url))
            with pytest.raises(RefusedError, match=why) as caught:
                await end(b, b.backups[0].name)
            assert caught.value.outcome == "not_done" and len(b.backups) == 1
            assert (await end(b, b.backups[0].name, force=True)).directory == "/a"
            assert b.backups == ()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"role": "primary", "phase": "active"}, "serves in place of 'a'"),
        ({"phase": "in_sync"}, "'a' is there, and colocated_backup_1 follows it"),
        ({"phase": "syncing"}, "follows it"),
    ],
)
async def test_a_backup_that_is_in_use_is_ended_by_force_only(
    seen: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair() as ground, host(ground, monkeypatch) as b:
        await decided(b, gone(asked(ground, "a")))
        fake: Any = b._hosted[asked(ground, "a").node_id].broker
        for name, value in seen.items():
            setattr(fake.ha, name, value)
        with pytest.raises(RefusedError, match=why):
            await end(b)
        assert len(b.backups) == 1 and Waiting.stopped == []
        assert (await end(b, force=True)).name == BACKUP


async def test_a_host_that_does_not_run_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground:
        async with host(ground, monkeypatch) as b:
            pass
        with pytest.raises(NotActiveError):
            await end(b)
        alone = Broker("x", data_dir=None, env=ground.env())
        with pytest.raises(NotFoundError, match="runs no backup"):
            await alone.ha.end_backup(BACKUP)


NO_SECONDS: tuple[Any, ...] = (-1, math.nan, "1", True, None)


async def test_an_end_with_a_wrong_argument_is_one_error_and_ends_nothing() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a, b = await started(ground, nursery, "ab", shared())
        name, no = b.ha.hosted[0].name, cast("Any", "no")
        wrong: list[tuple[str, tuple[Any, ...]]] = [("force", ("no", 1, None)), ("timeout", NO_SECONDS)]
        for setting, values in wrong:
            for value in values:
                with pytest.raises(SettingsError, match=f"^{setting}="):
                    await b.ha.end_backup(name, **{setting: value})
        async with b.client() as client:
            for whose in (b.ha, client):
                for other in (5, None):
                    with pytest.raises(SettingsError, match=r"^name="):
                        await whose.end_backup(cast("Any", other))
                with pytest.raises(NotFoundError) as long:
                    await whose.end_backup("x" * 3_000)
                assert len(str(long.value)) < 500
            with pytest.raises(SettingsError, match=r"^force='no'"):
                await client.end_backup(name, force=no)
            for call in (b.ha.fail_over, b.ha.fail_back, b.ha.wait_for, client.fail_over, client.fail_back):
                with pytest.raises(SettingsError, match=r"^timeout=-1"):
                    await call(timeout=-1)
        assert [one.name for one in b.ha.hosted] == [name] and a.state == b.state == "active"
        nursery.cancel_scope.cancel()


async def still_there(*about: object) -> None:
    raise RefusedError("it is still there")


async def test_a_node_that_is_gone_for_good_leaves_room_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        a, b = await started(ground, nursery, "ab", shared())
        name = b.ha.hosted[0].name
        with pytest.raises(CallTimeoutError, match="has not ended within 0 s"):
            await b.ha.end_backup(name, timeout=0)
        with pytest.raises(RefusedError, match="'a' answers at"):
            await b.ha.end_backup(name)
        await a.stop()
        async with b.client() as client:
            with pytest.raises(NotFoundError):
                await client.end_backup("x")
            monkeypatch.setattr(ended_backups, "check_gone", still_there)
            with pytest.raises(RefusedError, match="still there"):
                await client.end_backup(name)
            monkeypatch.undo()
            ended = await client.end_backup(name)
        assert (ended.requester, ended.directory, b.ha.hosted) == ("a", "/a", ())
        with pytest.raises(NotFoundError):
            await b.ha.end_backup(name)
        await b.stop()
        with pytest.raises(NotActiveError):
            await b.ha.end_backup(name)
        nursery.cancel_scope.cancel()


# -- by replication


async def test_the_directory_of_a_replica_that_is_ended_gets_a_name_that_no_start_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        async with remembering(ground, monkeypatch) as b:
            await decided(b, gone(replica_of(ground, "a")))
            ended = await end(b)
            assert (ended.requester, ended.directory) == ("a", f"/data/{ASIDE}")
            assert directories(ground) == [ASIDE] and names(b) == []
        async with remembering(ground, monkeypatch) as b:
            assert names(b) == []
            assert await decided(b, replica_of(ground, "c")) == ("colocated_backup_2", "")


async def test_a_replica_that_can_not_be_set_aside_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _), remembering(ground, monkeypatch) as b:
        request = gone(replica_of(ground, "a"))
        await decided(b, request)
        before = running(b)
        ground.disks["b"].faults.inject("move_directory", times=1)
        with pytest.raises(RefusedError, match="can't set aside the directory of colocated_backup_1"):
            await end(b)
        await until(lambda: names(b) == [(BACKUP, "a")])
        assert running(b) is not before and directories(ground) == [BACKUP]
        assert b.values(request.node_id)["mine"] == BACKUP


async def test_a_replica_of_before_that_is_held_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _):
        async with remembering(ground, monkeypatch, max_backups=1) as b:
            await decided(b, gone(replica_of(ground, "a")))
            places = b._plan.places_of(replica_of(ground, "a").node_id)
            await b._keep(places, gone(replica_of(ground, "a", **SECURED)).encode(), None)
        async with remembering(ground, monkeypatch, max_backups=1) as b:
            assert names(b) == [] and (await decided(b, replica_of(ground, "c")))[0] == ""
            assert (await end(b)).requester == "a" and directories(ground) == [ASIDE]
            assert await decided(b, replica_of(ground, "c")) == ("colocated_backup_2", "")


async def test_a_replica_of_before_that_can_not_be_read_is_ended_by_force_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _):
        async with remembering(ground, monkeypatch, max_backups=1) as b:
            await decided(b, gone(replica_of(ground, "a")))
        disk = ground.disks["b"].mount()
        file = disk.open(f"/data/{BACKUP}/hosted")
        file.write_at(0, [b"????????"])
        file.sync()
        async with remembering(ground, monkeypatch, max_backups=1) as b:
            with pytest.raises(RefusedError, match="the node of colocated_backup_1 has told no place"):
                await end(b)
            assert (await end(b, force=True)) == EndedBackup(
                name=BACKUP, requester="", node_id="", directory=f"/data/{ASIDE}"
            )
            assert await decided(b, replica_of(ground, "c")) == ("colocated_backup_2", "")
