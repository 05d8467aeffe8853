"""A node that decides about backups of others: nothing changes before all is checked, and no backup holds it up."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import AddressSettings, Broker, RefusedError, Security, SettingsError
from meshq.env import RealDisk
from meshq.ha.colocated import BackupRequest
from meshq.node.hosting._backup_host import STOP_GRACE_S, BackupHost
from meshq.node.hosting._hosted_settings import backup_request
from meshq.node.hosting._store_look import look_at_store
from tests.ha.colocated import broker, shared, until
from tests.ha.test_shared_store_brokers import Pair, pair, start


class Waiting:
    """A broker that waits as a backup, as its host sees it."""

    #: What a stop does besides; the backups that have stopped.
    stops: Callable[[], Any] | None = None
    stopped: list[str]

    def __init__(self, name: str, env: Any, **given: Any) -> None:
        Broker(name, env=env, **given)
        self.name = name
        self.state = "new"
        self.urls: list[str] = []
        self.ha: Any = type("Ha", (), {"role": "backup", "phase": "waiting", "last_error": "", "instance": b"i"})
        self.over = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.state = "waiting"
        task_status.started()
        await self.over.wait()

    async def stop(self, failover: bool = False) -> None:
        if Waiting.stops is not None:
            await Waiting.stops()
        Waiting.stopped.append(self.name)
        self.over.set()


@asynccontextmanager
async def host(ground: Pair, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> AsyncIterator[BackupHost]:
    """A host with fake backups, to which every store looks well."""
    monkeypatch.setattr("meshq.node.hosting._backup_host.look_at_store", lambda *looked: None)
    monkeypatch.setattr(Waiting, "stops", None)
    monkeypatch.setattr(Waiting, "stopped", [], raising=False)
    own = broker(ground, "b", shared(max_backups=1), **settings)._settings
    made: Any = Waiting
    found = BackupHost(own, own.ha, ground.env(), made, lambda *told, **about: None)  # type: ignore[arg-type]
    async with found.serving():
        yield found


def asked(ground: Pair, name: str, **settings: Any) -> BackupRequest:
    own: Any = broker(ground, name, shared(), **settings)._settings
    return backup_request(own, own.ha, name.encode() * 16, "tcp://127.0.0.1:1")


async def decided(host: BackupHost, request: BackupRequest, *, clears: bool = False) -> tuple[str, str]:
    """Ask the host, and return what it tells."""
    told: list[tuple[str, str]] = []
    host.begin(request.node_id, request.encode(), lambda *one: told.append(one), clears=clears)
    await until(lambda: told)
    await trio.testing.wait_all_tasks_blocked()
    return told[0]


async def test_a_request_that_is_refused_ends_no_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground, host(ground, monkeypatch) as b:
        assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
        wrong = [
            asked(ground, "c", security=Security(users={"u": "p"})),
            attrs.evolve(asked(ground, "c"), data_dir="/c/../x"),
            # Only the broker itself finds that out.
            attrs.evolve(asked(ground, "c"), settings={"memory_limit": "x"}),
        ]
        for request in wrong:
            name, why = await decided(b, request, clears=True)
            assert name == "" and why
        assert Waiting.stopped == [] and [one.requester for one in b.backups] == ["a"]
        # And one that is accepted begins when the other one has gone.
        assert await decided(b, asked(ground, "c"), clears=True) == ("colocated_backup_2", "")
        assert Waiting.stopped == ["colocated_backup_1"] and [one.requester for one in b.backups] == ["c"]


async def test_a_place_is_free_only_after_the_backup_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ground, host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        may_stop = trio.Event()
        monkeypatch.setattr(Waiting, "stops", may_stop.wait)
        told: list[Any] = []
        request = asked(ground, "c")
        for _ in range(2):
            b.begin(request.node_id, request.encode(), lambda *one: told.append(one), clears=True)
        await trio.testing.wait_all_tasks_blocked()
        # The second one is told at once that the first one is not decided about.
        assert [name for name, _ in told] == [""] and b.values()["backups"] == len(b.backups) == 1
        may_stop.set()
        await until(lambda: len(told) == 2)
        assert told[1] == ("colocated_backup_2", "") and b.values()["backups"] == len(b.backups) == 1


@pytest.mark.parametrize("problem", ["hangs", "fails"])
async def test_no_stop_of_a_backup_holds_up_or_ends_its_host(
    problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("no stop")

    began = math.inf
    with caplog.at_level(logging.WARNING):
        async with pair() as ground, host(ground, monkeypatch, stop_timeout=3.0) as b:
            await decided(b, asked(ground, "a", stop_timeout=math.inf))
            monkeypatch.setattr(Waiting, "stops", trio.sleep_forever if problem == "hangs" else fail)
            b.end(asked(ground, "a").node_id, b"")
            await until(lambda: b.backups == ())
            await decided(b, asked(ground, "c"))
            began = trio.current_time()
        assert trio.current_time() - began <= 3.0 + STOP_GRACE_S + 0.1
    assert "the backup of a, has not stopped cleanly" in caplog.text
    assert "the backup of c, has not stopped cleanly" in caplog.text


def test_a_store_is_looked_at_before_its_backup_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, own, theirs = RealDisk(), tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    link = tmp_path / "link"
    link.symlink_to(own)
    about = {"name": "a", "node_id": "a" * 32, "url": "tcp://x:1", "kind": "shared_store_backup"}

    def look(path: Path, root: str = "") -> None:
        look_at_store(disk, BackupRequest(**about, data_dir=str(path)), [str(own)], root)

    # A disk that is not mounted; and the directory for that.
    with pytest.raises(RefusedError, match="no store, or is not there"):
        look(theirs)
    assert not theirs.exists()
    theirs.mkdir()
    with pytest.raises(RefusedError, match="no store, or is not there"):
        look(theirs)
    assert list(theirs.iterdir()) == []
    with pytest.raises(SettingsError, match="apart from those in use here"):
        look(link / "x")
    with pytest.raises(SettingsError, match="shared_root"):
        look(theirs, str(own))
    monkeypatch.setattr("meshq.ha.SharedDirectory.node_id", lambda directory: "b" * 32)
    with pytest.raises(RefusedError, match="has the store of the node bbbb"):
        look(theirs)
    monkeypatch.setattr("meshq.ha.SharedDirectory.node_id", lambda directory: "a" * 32)
    look(theirs, str(tmp_path))


@pytest.mark.slow
async def test_a_node_that_was_started_with_other_settings_gets_a_backup_with_them() -> None:
    async with pair() as ground, trio.open_nursery() as nursery:
        b = await start(ground, nursery, broker(ground, "b", shared(request_backup=False)))
        a = await start(ground, nursery, broker(ground, "a", shared()))
        await until(lambda: bool(b.ha.hosted) and b.ha.hosted[0].phase == "waiting")
        await a.stop()
        changed = {"q": AddressSettings(max_delivery_attempts=77)}
        await start(ground, nursery, broker(ground, "a", shared(), address_settings=changed))
        await until(lambda: bool(b.ha.hosted) and b.ha.hosted[0].name == "colocated_backup_2")
        assert b._run.hosting is not None
        backup: Any = b._run.hosting._hosted[(b"a" * 16).hex()].broker
        assert backup._settings.address_settings["q"].max_delivery_attempts == 77
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_asks_at_0_5_and_10_seconds_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[float] = []
    begin = BackupHost.begin

    def counted(self: BackupHost, node_id: str, packed: bytes, told: Any, *, clears: bool = False) -> None:
        at.append(trio.current_time())
        begin(self, node_id, packed, told, clears=clears)

    async def never(self: BackupHost, *looked: Any, **about: Any) -> str:
        raise RefusedError("not now")

    monkeypatch.setattr(BackupHost, "begin", counted)
    monkeypatch.setattr(BackupHost, "_host", never)
    async with pair() as ground, trio.open_nursery() as nursery:
        await start(ground, nursery, broker(ground, "b", shared(request_backup=False)))
        await start(ground, nursery, broker(ground, "a", shared(backup_request_retries=2)))
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert [round(one - at[0], 1) for one in at] == [0.0, 5.0, 10.0]
