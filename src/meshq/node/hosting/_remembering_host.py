"""A node that runs the backups of other nodes in its process, each with a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from meshq.errors import DamagedError, MeshqError, RefusedError, SettingsError
from meshq.ha.colocated import BackupRequest, FoundBackups, HostedPlaces, KeptBackup, KeptBackups, decode_epoch
from meshq.logs import Warnings, logger
from meshq.node.hosting._backup_host import POOL, BackupHost, RunningBackup

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
        self._kept = KeptBackups(self._env.disk, self._settings.data_dir or "")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Surround the run of the host, as without stores; the backups of the life before are begun first.

        Checkpoint: always.
        Cancellation: they are stopped at once, as after a crash.
        """
        async with super().serving():
            self._going.start_soon(self._begin_kept)
            yield

    async def _begin_kept(self) -> None:
        """Begin all that is remembered.  No request is decided about before."""
        async with self._deciding:
            found = await self._found()
            self._plan.count_from(found.latest)
            for error in found.damaged:
                self._complain("a backup of before is not begun: %s", error)
            for kept in found.backups:
                try:
                    request = BackupRequest.decode(kept.request)
                    if request.node_id in self._hosted:
                        raise RefusedError("an earlier one is of the same node")
                    self._begin(request, self._plan.places_again(request, kept.number, kept.place))
                except MeshqError as error:
                    self._complain(f"colocated_backup_{kept.number} of before is not begun: %s", error)

    async def _found(self) -> FoundBackups:
        """Return the backups of the life before; a disk that fails is asked again."""
        while True:
            try:
                return await self._env.threads.run(self._kept.look, pool=POOL)
            except OSError as error:
                self._complain("what backups there were is not known: %s", error)
            await trio.sleep(PAUSE_S)

    def _complain(self, text: str, about: object) -> None:
        self._warnings.say("hosted_backup_failed", f"{self._settings.name}: {text % about}", text)

    def _begin(self, request: BackupRequest, places: HostedPlaces) -> None:
        """Begin to run a backup that is remembered.  Raises: NotActiveError, SettingsError."""
        nursery, broker = self._going, self._made(request, places)
        self._plan.begin_again(request, places)
        self._hosted[request.node_id] = one = RunningBackup(broker, request.name, request.node_id, request)
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
            places = plan.places_for(request)
            self._made(request, places)
            await self._keep(places, packed)
            self._begin(request, places)
        elif plan.request_of(node_id) != request.digest:
            plan.check(request)
            places = plan.places_of(node_id)
            self._made(request, places)
            if not self._rests(one):
                raise RefusedError(f"the backup of {request.name!r} serves here, and has its settings until it waits")
            await self._keep(places, packed)
            await self._stop(one, failover=True)
            self._begin(request, places)
        return plan.name_for(node_id)

    async def _keep(self, places: HostedPlaces, packed: bytes) -> None:
        """Remember a backup before it begins.  Raises: RefusedError."""
        kept = KeptBackup(number=places.number, place=places.place, request=packed)
        try:
            await self._env.threads.run(self._kept.keep, kept, pool=POOL)
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
        if one is not None and self._nursery is not None:
            self._nursery.start_soon(self._end_for_good, one, epoch)

    async def _end_for_good(self, one: RunningBackup, epoch: int) -> None:
        async with self._deciding:
            if self._hosted.get(one.node_id) is not one or not self._rests(one):
                return
            places = self._plan.places_of(one.node_id)
            if not await self._is_left_behind(places, epoch):
                return
            await self._stop(one)
            if self._nursery is None:
                # It is remembered, and begun again by the next life.
                return
            # It may have taken over until it has stopped.
            if not await self._set_aside(places, epoch):
                assert one.request is not None
                self._begin(one.request, places)

    async def _is_left_behind(self, places: HostedPlaces, epoch: int) -> bool:
        try:
            return await self._env.threads.run(self._kept.is_left_behind, places.number, epoch, pool=POOL)
        except (DamagedError, OSError) as error:
            self._complain(f"whether {places.name} has the newest store is not known: %s", error)
            return False

    async def _set_aside(self, places: HostedPlaces, epoch: int) -> bool:
        """Forget a backup that is left behind; return whether that was done."""
        if not await self._is_left_behind(places, epoch):
            return False
        try:
            await self._env.threads.run(self._kept.set_aside, places.number, pool=POOL)
        except OSError as error:
            self._complain(f"{places.name} is not set aside: %s", error)
            return False
        _log.info("%s is set aside: its node has another replica", places.name, extra={"event": "backup_set_aside"})
        return True

    async def _live(self, one: RunningBackup) -> None:
        """Run a backup, one life after the other, until it is told to stop."""
        pause_s = PAUSE_S
        while True:
            await super()._live(one)
            with trio.move_on_after(pause_s):
                await one.leaves.wait()
            if one.leaves.is_set() or one.request is None:
                return
            pause_s = PAUSE_S if one.began else min(2 * pause_s, PAUSE_S_MAX)
            one.began, one.scope = False, trio.CancelScope()
            one.broker = self._made(one.request, self._plan.places_of(one.node_id))
