"""A node that runs the backups of other nodes in its process, each with a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio

from meshq.errors import DamagedError, MeshqError, NotActiveError, RefusedError, SettingsError
from meshq.ha.colocated import BackupRequest, FoundBackups, HostedPlaces, KeptBackup, backup_number, decode_epoch
from meshq.logs import Warnings, logger
from meshq.node.hosting._backup_host import LOOK_POOL, BackupHost, RunningBackup
from meshq.node.hosting._host_directory import HostDirectory
from meshq.node.hosting._node_look import check_gone
from meshq.statistics import EndedBackup

#: The threads for changes in the host's own directory.  A host that is cancelled waits for them: a later one would
#: change what the next life has found.
OWN_POOL: Final = "hosted backups"
#: Seconds for which it holds what a node has said of its backup.
WORD_S: Final = 10.0
#: Seconds before a backup that has ended is begun again: at first, and the most.
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
_log = logger("node")


class RememberingHost(BackupHost):
    """Runs backups that follow other nodes, and forgets none of them: its store may be the only whole one.

    A backup that ends is begun again, also by the next life of the host, with its number and its ports.
    """

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._warnings = Warnings("node", trio.current_time)
        self._kept = HostDirectory(self._env.disk, self._settings.data_dir or "")
        # Why a backup of before could not be read, by its number; None: there was no look.
        self._unread: dict[int, DamagedError | OSError] | None = None
        # Backups of before that are not begun, by their number.
        self._held: dict[int, KeptBackup] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Surround the run of the host, as without stores; the backups of the life before are begun first.

        Checkpoint: always.
        Cancellation: they are stopped at once, as after a crash.
        """
        async with super().serving():
            self._going.start_soon(self._begin_kept)
            yield

    def values(self, node_id: str = "") -> dict[str, Any]:
        """Return the values of an answer; while a backup of before can't be read, there is no room for others."""
        values = super().values(node_id)
        return {**values, "max_backups": values["backups"]} if self._unread else values

    async def _begin_kept(self) -> None:
        """Begin all that is remembered.  No request is decided about before each was looked at."""
        pause_s = PAUSE_S
        while True:
            async with self._deciding:
                self._begin_found(await self._found())
            if not self._unread:
                return
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _found(self) -> FoundBackups:
        """Return the backups of the life before; a disk that fails is asked again."""
        while True:
            try:
                return await self._env.threads.run(self._kept.look, pool=LOOK_POOL)
            except OSError as error:
                self._complain("what backups there were is not known: %s", error)
            await trio.sleep(PAUSE_S)

    def _begin_found(self, found: FoundBackups) -> None:
        """Begin the backups that were found and do not run yet; only the first look is about all of them."""
        before, told = self._unread, self._kept.unread
        self._plan.count_from(found.latest)
        self._unread = {number: told[number] for number in told if before is None or number in before}
        for number, error in self._unread.items():
            self._complain(f"colocated_backup_{number} of before is not begun: %s", error)
        for kept in found.backups:
            if before is None or kept.number in before:
                self._begin_or_hold(kept)

    def _begin_or_hold(self, kept: KeptBackup) -> None:
        """Begin a backup of before.  If it may not run as things are, its number and its ports are held for it."""
        try:
            request = BackupRequest.decode(kept.request)
            if request.node_id in self._hosted:
                raise RefusedError("an earlier one is of the same node")
            self._plan.check(request)
            self._begin(request, self._plan.places_again(request, kept.number, kept.place))
        except NotActiveError:
            # It is remembered, and begun again by the next life.
            return
        except MeshqError as error:
            self._complain(f"colocated_backup_{kept.number} of before is not begun: %s", error)
            self._hold(kept)

    def _hold(self, kept: KeptBackup) -> None:
        """Keep number and ports of a backup that is not running; its node may ask for it again."""
        self._plan.hold(kept.number, kept.place)
        self._held[kept.number] = kept

    def _held_for(self, node_id: str) -> KeptBackup | None:
        """Return a backup of a node that is held, if there is one."""
        for kept in self._held.values():
            # Of another one it can't be said whose it is.
            if (request := _readable(kept)) is not None and request.node_id == node_id:
                return kept
        return None

    def _complain(self, text: str, about: object) -> None:
        self._warnings.say("hosted_backup_failed", f"{self._settings.name}: {text % about}", text)

    def _begin(self, request: BackupRequest, places: HostedPlaces) -> None:
        """Begin to run a backup that is remembered.  Raises: NotActiveError, SettingsError."""
        nursery, broker = self._going, self._made(request, places)
        self._plan.begin_again(request, places)
        self._hosted[request.node_id] = one = RunningBackup(broker, request.name, request.node_id, request.url, request)
        nursery.start_soon(self._run, one)

    async def _host(self, node_id: str, packed: bytes, *, clears: bool) -> str:
        """Begin to run a backup, and return its name; one that runs with other settings is begun again with these.

        Raises:
            RefusedError: this node does not run it.
            SettingsError: the request is wrong.
            NotActiveError: the host stops.
        """
        plan, request = self._plan, self._read(node_id, packed)
        one = self._hosted.get(node_id)
        if one is None:
            await self._begin_new(request, packed)
        elif plan.request_of(node_id) != request.digest:
            await self._change(one, request, packed)
        return plan.name_for(node_id)

    async def _begin_new(self, request: BackupRequest, packed: bytes) -> None:
        """Begin to run a backup that does not run, where it was if one is held for its node."""
        plan, held = self._plan, self._held_for(request.node_id)
        plan.check(request)
        if held is not None:
            places = plan.places_again(request, held.number, held.place)
        elif self._unread:
            which = ", ".join(f"colocated_backup_{number}" for number in self._unread)
            text = f"{self._settings.name!r} can't read {which} in its data_dir, so that node and ports are not known"
            raise RefusedError(f"{text}: no other backup is begun before they are readable, or elsewhere")
        else:
            places = plan.places_for(request)
        self._made(request, places)
        await self._keep(places, packed, None if held is None else held.request)
        if held is not None:
            del self._held[held.number]
            plan.release(held.number)
        self._begin(request, places)

    async def _change(self, one: RunningBackup, request: BackupRequest, packed: bytes) -> None:
        """Begin a backup again with other settings, if it does not serve."""
        plan, serves = self._plan, f"the backup of {request.name!r} serves here, and has its settings until it waits"
        plan.check(request)
        places = plan.places_of(one.node_id)
        self._made(request, places)
        if not self._rests(one):
            raise RefusedError(serves)
        assert one.request is not None
        before = one.request.encode()
        await self._keep(places, packed, before)
        if not self._rests(one):
            # It has taken over meanwhile.
            await self._keep(places, before, before)
            raise RefusedError(serves)
        await self._stop(one, failover=True)
        self._begin(request, places)

    async def _keep(self, places: HostedPlaces, packed: bytes, before: bytes | None) -> None:
        """Remember a backup before it begins; ``before``: the request that is remembered.

        Raises:
            RefusedError: it is remembered as before, as far as the disk allows.
        """
        kept = KeptBackup(number=places.number, place=places.place, request=packed)
        old = None if before is None else attrs.evolve(kept, request=before)
        try:
            await self._env.threads.run(self._kept.keep, kept, old, pool=OWN_POOL)
        except OSError as error:
            raise RefusedError(f"{self._settings.name!r} can't remember the backup: {error}") from error

    def _rests(self, one: RunningBackup) -> bool:
        """Whether a backup does not serve, and is not about to, or does not run at all."""
        return one.idle or one.broker.state in ("failed", "stopped")

    def end(self, node_id: str, word: bytes) -> None:
        """End the backup of a node for good, which has another replica in sync, if nothing is only here.

        ``word``: the epoch in which the node serves.  Silent without a backup, and for one that serves, or has served
        after its node.
        """
        one = self._hosted.get(node_id)
        try:
            epoch = decode_epoch(word)
        except SettingsError as error:
            self._complain("a backup is not ended: %s", error)
            return
        if one is not None:
            self._start_end(one, partial(self._end_for_good, one, epoch, trio.current_time() + WORD_S))

    async def _end_for_good(self, one: RunningBackup, epoch: int, until: float) -> None:
        async with self._deciding:
            # The node says it again at each look; what it said long ago may not be so any more.
            if trio.current_time() > until or not self._may_end(one):
                return
            places = self._plan.places_of(one.node_id)
            if not await self._is_left_behind(places, epoch) or not self._may_end(one):
                return
            await self._stop(one)
            if self._nursery is None:
                # It is remembered, and begun again by the next life.
                return
            # It may have taken over until it has stopped.
            if not await self._set_aside(places, epoch):
                await self._resume(one, places)

    async def _resume(self, one: RunningBackup, places: HostedPlaces) -> None:
        """Begin a backup again that was stopped, and is not set aside; hold it if it can't be remembered."""
        assert one.request is not None
        packed = one.request.encode()
        kept = KeptBackup(number=places.number, place=places.place, request=packed)
        try:
            await self._keep(places, packed, packed)
        except RefusedError as error:
            self._complain(f"{places.name} is not begun again: %s", error)
            self._hold(kept)
        else:
            self._begin_or_hold(kept)

    async def _end_named(self, name: str, *, force: bool) -> EndedBackup:
        """End a backup for good, also one of before that is held or can't be read; its directory gets another name."""
        number = backup_number(name)
        held = self._held.get(number)
        if held is None and number not in (self._unread or ()):
            return await super()._end_named(name, force=force)
        request = _readable(held)
        whose = f"the node of {name}" if request is None else repr(request.name)
        if not force:
            await check_gone(self._env, whose, "" if request is None else request.url)
        directory = await self._rename(number)
        self._plan.release(number)
        self._held.pop(number, None)
        if self._unread:
            self._unread.pop(number, None)
        requester, node_id = ("", "") if request is None else (request.name, request.node_id)
        return EndedBackup(name=name, requester=requester, node_id=node_id, directory=directory)

    async def _put_aside(self, one: RunningBackup, places: HostedPlaces) -> str:
        """Forget a backup that has ended by hand; where that can't be done, it is begun again."""
        if self._nursery is None:
            # It is remembered, and begun again by the next life.
            raise NotActiveError(f"the broker {self._settings.name!r} stops")
        try:
            return await self._rename(places.number)
        except RefusedError:
            await self._resume(one, places)
            raise

    async def _rename(self, number: int) -> str:
        """Set the directory of a backup aside, and return its path.  Raises: RefusedError: the disk has failed."""
        name = f"colocated_backup_{number}"
        try:
            directory = await self._env.threads.run(self._kept.set_aside, number, pool=OWN_POOL)
        except OSError as error:
            text = f"{self._settings.name!r} can't set aside the directory of {name}: {error}"
            raise RefusedError(text, outcome="not_done") from error
        await self._sync(name)
        return directory

    def _may_end(self, one: RunningBackup) -> bool:
        """Whether a backup runs that neither serves nor follows its node, which has one replica only."""
        is_there = self._hosted.get(one.node_id) is one
        return is_there and self._rests(one) and one.broker.ha.phase not in ("syncing", "in_sync")

    async def _is_left_behind(self, places: HostedPlaces, epoch: int) -> bool:
        try:
            return await self._env.threads.run(self._kept.is_left_behind, places.number, epoch, pool=LOOK_POOL)
        except (DamagedError, OSError) as error:
            self._complain(f"whether {places.name} has the newest store is not known: %s", error)
            return False

    async def _set_aside(self, places: HostedPlaces, epoch: int) -> bool:
        """Forget a backup that is left behind; return whether that was done."""
        if not await self._is_left_behind(places, epoch):
            return False
        try:
            await self._env.threads.run(self._kept.set_aside, places.number, pool=OWN_POOL)
        except OSError as error:
            self._complain(f"{places.name} is not set aside: %s", error)
            return False
        await self._sync(places.name)
        _log.info("%s is set aside: its node has another replica", places.name, extra={"event": "backup_set_aside"})
        return True

    async def _sync(self, name: str) -> None:
        """Make it durable that a backup is set aside.

        Its directory is gone whatever the disk says.  A loss of power may bring it back, with the file by which it is
        remembered: then the next life begins it, and it is ended again.
        """
        try:
            await self._env.threads.run(self._kept.sync, pool=OWN_POOL)
        except OSError as error:
            self._complain(f"{name} is set aside, until a loss of power perhaps: %s", error)

    async def _live(self, one: RunningBackup) -> None:
        """Run a backup, one life after the other, until it is told to stop."""
        pause_s = PAUSE_S
        await super()._live(one)
        while True:
            with trio.move_on_after(pause_s):
                await one.leaves.wait()
            if one.leaves.is_set() or one.request is None:
                return
            pause_s = PAUSE_S if one.began else min(2 * pause_s, PAUSE_S_MAX)
            one.began, one.scope = False, trio.CancelScope()
            try:
                one.broker = self._made(one.request, self._plan.places_of(one.node_id))
            except MeshqError as error:
                one.complain("is not begun again: %s", error)
                continue
            await super()._live(one)


def _readable(kept: KeptBackup | None) -> BackupRequest | None:
    """Return the request of a backup of before; None: this version can't read it."""
    try:
        return None if kept is None else BackupRequest.decode(kept.request)
    except MeshqError:
        return None
