"""A host of backups with stores of their own: what it holds back, what it waits for, and what it never stops."""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import Security, SettingsError, abc
from meshq.env import WorkerThreads
from meshq.ha.colocated import encode_epoch
from meshq.node.hosting._remembering_host import WORD_S, RememberingHost
from tests.ha.colocated import until
from tests.ha.replicated import Machines, machines
from tests.ha.test_backup_host import Waiting, decided
from tests.ha.test_remembering_host import asked, end, host, names, remember

SECURED: dict[str, Any] = {"security": Security(users={"u": "p"})}


class During(abc.Threads):
    """Threads that let something happen before the calls of one function."""

    def __init__(self, inner: abc.Threads, function: str, happens: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._function = function
        self._happens = happens

    async def run(self, function: Any, *arguments: Any, pool: str = "default") -> Any:
        if function.__name__ == self._function:
            await self._happens()
        return await self._inner.run(function, *arguments, pool=pool)

    def idle(self) -> bool:
        return self._inner.idle()


class Slow:
    """A disk on which one kind of call waits until it is let go."""

    def __init__(self, disk: abc.Disk, call: str) -> None:
        self._disk = disk
        self._call = call
        self.entered, self.goes_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name != self._call:
            return found

        def slow(*arguments: Any) -> Any:
            self.entered.set()
            self.goes_on.wait(10)
            return found(*arguments)

        return slow


def during(found: RememberingHost, function: str, happens: Callable[[], Awaitable[None]]) -> None:
    """Let something happen before each call of a function in a thread of a host."""
    found._env = attrs.evolve(found._env, threads=During(found._env.threads, function, happens))


def running(found: RememberingHost, name: str = "a") -> Any:
    """Return the fake broker that is the backup of a node."""
    return found._hosted[(name.encode() * 16).hex()].broker


def directories(ground: Machines) -> list[str]:
    return sorted(one for one in ground.disks["b"].names("/data") if "colocated" in one)


# -- what is cancelled


@pytest.mark.parametrize("call", ["make_directory", "replace", "move_directory"])
async def test_a_host_that_is_cancelled_waits_for_what_it_changes(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, nursery):
        scope, over = trio.CancelScope(), trio.Event()
        disk: Any = Slow(ground.disks["b"].mount(), call)

        async def live() -> None:
            with scope:
                async with host(ground, monkeypatch) as b:
                    request = asked(ground, "a")
                    if call == "move_directory":
                        await decided(b, request)
                    b._env = attrs.evolve(b._env, threads=WorkerThreads())
                    b._kept._disk = disk
                    if call == "move_directory":
                        b.end(request.node_id, encode_epoch(5))
                    else:
                        b.begin(request.node_id, request.encode(), lambda *told: None)
                    await trio.sleep_forever()
            over.set()

        nursery.start_soon(live)
        await trio.to_thread.run_sync(disk.entered.wait, 10)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        left_early = over.is_set()
        disk.goes_on.set()
        await over.wait()
        assert disk.entered.is_set() and not left_early
        # So the next life finds all of it.
        async with host(ground, monkeypatch) as b:
            if call == "move_directory":
                assert names(b) == [] and directories(ground) == ["oldreplica.colocated_backup_1"]
            else:
                assert names(b) == [("colocated_backup_1", "a")]
            assert await decided(b, asked(ground, "c")) != ("colocated_backup_1", "")


# -- what is not begun again


async def test_a_backup_whose_users_are_others_now_is_held_for_its_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with machines() as (ground, _):
        async with host(ground, monkeypatch, max_backups=2) as b:
            assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
        secured = asked(ground, "a", **SECURED)
        async with host(ground, monkeypatch, max_backups=2) as b:
            # As of a host that had users before.
            await b._keep(b._plan.places_of(secured.node_id), secured.encode(), None)
        with caplog.at_level(logging.WARNING):
            async with host(ground, monkeypatch, max_backups=2) as b:
                assert names(b) == [] and b.values(secured.node_id)["mine"] == ""
                assert "colocated_backup_1 of before is not begun" in caplog.text and "security=" in caplog.text
                # It counts, its ports are given to nobody, and its node is refused with the reason.
                assert await decided(b, asked(ground, "c")) == ("colocated_backup_2", "")
                assert b._plan.places_of(asked(ground, "c").node_id).place == 2
                other = attrs.evolve(asked(ground, "a"), name="d", node_id="d" * 32)
                assert "max_backups" in (await decided(b, other))[1]
                assert "security=" in (await decided(b, secured))[1]
                # With the same users its node gets that one, in its directory and at its ports.
                assert await decided(b, asked(ground, "a")) == ("colocated_backup_1", "")
                assert b._plan.places_of(secured.node_id).place == 1 and b.values()["backups"] == 2


async def test_one_that_can_not_be_read_holds_up_no_other_and_is_begun_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        async with host(ground, monkeypatch, max_backups=3) as b:
            await decided(b, asked(ground, "a"))
            await decided(b, asked(ground, "c"))
        disk = ground.disks["b"]
        # A file is no backup, but has its number.
        disk.mount().make_directory("/data/colocated_backup_9")
        disk.faults.inject("open", errno.ENOTDIR, path="colocated_backup_9/hosted", times=math.inf)
        disk.faults.inject("open", errno.EACCES, path="colocated_backup_1/hosted", times=3)
        async with host(ground, monkeypatch, max_backups=3) as b:
            assert names(b) == [("colocated_backup_2", "c")]
            new = attrs.evolve(asked(ground, "a"), name="d", node_id="d" * 32)
            name, why = await decided(b, new)
            assert name == "" and "can't read colocated_backup_1 " in why
            values = b.values(new.node_id)
            assert values["backups"] == values["max_backups"]
            # A node that has a backup here is decided about as ever.
            assert await decided(b, asked(ground, "c", memory_limit=77_000_000)) == ("colocated_backup_2", "")
            await until(lambda: len(b.backups) == 2)
            assert b._plan.places_of(asked(ground, "a").node_id).place == 1
            assert await decided(b, new) == ("colocated_backup_10", "")
            assert b.values()["max_backups"] == 3


async def test_the_ports_of_a_backup_whose_file_is_damaged_are_given_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        async with host(ground, monkeypatch, max_backups=2) as b:
            await decided(b, asked(ground, "a"))
        disk = ground.disks["b"].mount()
        file = disk.open("/data/colocated_backup_1/hosted")
        good = file.read_at(0, 9_999)
        file.write_at(0, [b"zz"])
        async with host(ground, monkeypatch, max_backups=2) as b:
            assert (await decided(b, asked(ground, "c")))[0] == "" and names(b) == []
            file.write_at(0, [good])
            await until(lambda: b.backups)
            assert names(b) == [("colocated_backup_1", "a")]
            assert await decided(b, asked(ground, "c")) == ("colocated_backup_2", "")
            places = [b._plan.places_of(asked(ground, name).node_id).place for name in "ac"]
            assert places == [1, 2]


async def test_a_backup_that_can_not_be_made_again_ends_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        node_id, made = asked(ground, "a").node_id, b._made
        failures = [SettingsError("tls", "x", "a certificate that is there")] * 2

        def fail(*about: Any) -> Any:
            if failures:
                raise failures.pop()
            return made(*about)

        monkeypatch.setattr(b, "_made", fail)
        running(b).over.set()
        await until(lambda: b.backups[0].last_error)
        assert "not begun again" in b.backups[0].last_error
        assert (b.values(node_id)["mine_error"], b.values(node_id)["mine_ready"]) == (b.backups[0].last_error, False)
        await until(lambda: b.values(node_id)["mine_ready"])
        assert b.values(node_id)["mine_error"] == b.backups[0].last_error == ""


# -- what serves, and what follows


async def test_a_backup_that_takes_over_while_settings_are_stored_goes_on_with_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        before = asked(ground, "a")
        async with host(ground, monkeypatch) as b:
            await decided(b, before)

            async def take_over() -> None:
                running(b).state = "active"

            during(b, "keep", take_over)
            name, why = await decided(b, asked(ground, "a", memory_limit=77_000_000))
            assert name == "" and "serves here" in why
            assert Waiting.stopped == []
        async with host(ground, monkeypatch) as b:
            assert b.values(before.node_id)["mine_request"] == before.digest


@pytest.mark.parametrize("phase", ["syncing", "in_sync"])
async def test_a_late_word_does_not_end_the_replica_that_follows(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        remember(ground, 1, epoch=5, in_sync=True)
        running(b).ha.phase = phase
        await end(b, asked(ground, "a"), 5)
        assert Waiting.stopped == [] and directories(ground) == ["colocated_backup_1"]
        running(b).ha.phase = "searching"

        async def follow() -> None:
            running(b).ha.phase = phase

        # Also one that begins to follow, or to serve, while its memory is looked at.
        during(b, "is_left_behind", follow)
        await end(b, asked(ground, "a"), 5)
        assert Waiting.stopped == [] and directories(ground) == ["colocated_backup_1"]


async def test_a_host_holds_one_word_of_a_node_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machines() as (ground, _), host(ground, monkeypatch) as b:
        await decided(b, asked(ground, "a"))
        remember(ground, 1, epoch=5)
        async with b._deciding:
            before = trio.lowlevel.current_statistics().tasks_living
            for _ in range(50):
                b.end(asked(ground, "a").node_id, encode_epoch(5))
            assert trio.lowlevel.current_statistics().tasks_living - before == 1
            await trio.sleep(WORD_S + 1)
        await trio.testing.wait_all_tasks_blocked()
        assert Waiting.stopped == []
        # The next look of the node says it again.
        await end(b, asked(ground, "a"), 5)
        assert directories(ground) == ["oldreplica.colocated_backup_1"]


async def test_a_host_that_stops_while_it_looks_at_a_backup_stops_the_others_cleanly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machines() as (ground, _):
        looks, stopped = 0, trio.Event()

        async def hang() -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                remember(ground, 1, epoch=6, acted=True)
                stopped.set()
                await trio.sleep(0.5)

        async with host(ground, monkeypatch, max_backups=2) as b:
            await decided(b, asked(ground, "a"))
            await decided(b, asked(ground, "c"))
            remember(ground, 1, epoch=5)

            async def slow_stop() -> None:
                # The first one that stops is the one of a.
                if stopped.is_set():
                    await trio.sleep(2)

            monkeypatch.setattr(Waiting, "stops", slow_stop)
            during(b, "is_left_behind", hang)
            b.end(asked(ground, "a").node_id, encode_epoch(5))
            await stopped.wait()
        assert Waiting.stopped == ["colocated_backup_1", "colocated_backup_2"]
        assert directories(ground) == ["colocated_backup_1", "colocated_backup_2"]
