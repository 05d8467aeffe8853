"""A node that runs the backups of other nodes in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol

import attrs
import trio

from meshq import abc
from meshq.broker import BackupTold, EndTold
from meshq.errors import MeshqError, NotActiveError, NotFoundError, RefusedError, short
from meshq.ha.colocated import BackupRequest, Colocated, HostedPlaces, HostingPlan
from meshq.logs import logger
from meshq.node._settings import BrokerSettings
from meshq.node.hosting._hosted_backup import HostedBackup
from meshq.node.hosting._hosted_settings import host_rules, hosted_settings
from meshq.node.hosting._node_look import check_gone
from meshq.node.hosting._store_look import look_at_store
from meshq.node.terms._high_availability import ERROR_CHARACTERS_MAX, RoleFigures
from meshq.notifications import ColocatedBackupStarted
from meshq.statistics import EndedBackup

#: The threads for looks, which change nothing; one that hangs holds up nobody who has left it.
LOOK_POOL: Final = "discovery of stores"
#: Seconds of a look at the store of a node that asks.
LOOK_S: Final = 5.0
#: Seconds more than the ``stop_timeout`` of the host that a backup has to close its store.
STOP_GRACE_S: Final = 5.0
_log = logger("node")


class HostedBroker(Protocol):
    """A broker that is a backup, as its host needs it."""

    @property
    def name(self) -> str:
        """The name of the backup."""

    @property
    def state(self) -> str:
        """The state of the broker."""

    @property
    def urls(self) -> list[str]:
        """Where it listens."""

    @property
    def ha(self) -> RoleFigures:
        """Its role."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run it."""

    async def stop(self, failover: bool = False) -> None:
        """Stop it cleanly; ``failover``: another node takes over."""


class _NamesOfHosted(MutableMapping[str, abc.LocalAcceptor]):
    """The in-process endpoints of a process, to which a backup adds itself under its host's name and its own."""

    def __init__(self, local: MutableMapping[str, abc.LocalAcceptor], host: str, name: str) -> None:
        self._local = local
        self._names = {name: f"{host}.{name}"}

    def __getitem__(self, name: str) -> abc.LocalAcceptor:
        return self._local[self._names.get(name, name)]

    def __setitem__(self, name: str, acceptor: abc.LocalAcceptor) -> None:
        self._local[self._names.get(name, name)] = acceptor

    def __delitem__(self, name: str) -> None:
        del self._local[self._names.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._local)

    def __len__(self) -> int:
        return len(self._local)


@attrs.define(eq=False)
class RunningBackup:
    """A backup that runs."""

    broker: HostedBroker
    requester: str
    node_id: str
    #: Where its node is reached, as that has said.
    url: str = ""
    #: With which it is begun again; None: it is not.
    request: BackupRequest | None = None
    #: Whether it listens.
    began: bool = False
    #: Why its last life has ended, until it listens again.
    problem: str = ""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    #: Set once it is told to stop, and once it has.
    leaves: trio.Event = attrs.field(factory=trio.Event)
    gone: trio.Event = attrs.field(factory=trio.Event)

    @property
    def idle(self) -> bool:
        """Whether it neither serves nor is about to."""
        return self.broker.state == "waiting" and self.broker.ha.role == "backup"

    @property
    def serves(self) -> bool:
        """Whether it serves, or is about to."""
        return self.broker.ha.role == "primary"

    def complain(self, text: str, about: object) -> None:
        """Warn of something that went wrong with it."""
        self.problem = text % about
        what = f"%s, the backup of %s, {text}"
        _log.warning(what, self.broker.name, self.requester, about, extra={"event": "hosted_backup_failed"})

    def seen(self) -> HostedBackup:
        """Return it as programs see it."""
        broker = self.broker
        return HostedBackup(
            name=broker.name,
            requester=self.requester,
            node_id=self.node_id,
            state=broker.state,
            role=broker.ha.role,
            phase=broker.ha.phase,
            urls=tuple(broker.urls),
            last_error=broker.ha.last_error or self.problem,
        )


class BackupHost:
    """Runs backups of other nodes, as long as the broker runs that has it.

    ``make``: makes a broker from its name and its keywords.  ``emit``: notifies the watchers of the host.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        policy: Colocated,
        env: abc.Env,
        make: Callable[..., HostedBroker],
        emit: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._env = env
        self._make = make
        self._emit = emit
        self._plan = HostingPlan(host_rules(settings, policy))
        self._hosted: dict[str, RunningBackup] = {}
        self._nursery: trio.Nursery | None = None
        # The nodes whose requests are not decided about yet.
        self._asked: set[str] = set()
        # The nodes whose backups are about to end, as they have said.
        self._ending: set[str] = set()
        self._deciding = trio.Lock()

    @property
    def backups(self) -> tuple[HostedBackup, ...]:
        """The backups that run, in the order of their making."""
        return tuple(one.seen() for one in self._hosted.values())

    def values(self, node_id: str = "") -> dict[str, Any]:
        """Return the values of an answer about the backups; ``node_id``: the node whose backup ``mine`` names."""
        mine = self._hosted.get(node_id)
        return {
            "backups": self._plan.backups,
            "max_backups": self._policy.max_backups,
            "mine": self._plan.name_for(node_id),
            "mine_ready": mine is not None and mine.began,
            "mine_request": self._plan.request_of(node_id),
            "mine_life": mine.broker.ha.instance.hex() if mine is not None else "",
            "mine_error": mine.problem[:ERROR_CHARACTERS_MAX] if mine is not None else "",
            "hosted": [one.row() for one in self.backups],
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Surround the run of the host: backups run meanwhile, and have stopped at the end.

        Checkpoint: always.
        Cancellation: they are stopped at once, as after a crash.
        """
        failure: MeshqError | OSError | None = None
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield
            except (MeshqError, OSError) as error:
                # It leaves the block as it was raised, in no group.
                failure = error
            self._nursery = None
            async with trio.open_nursery() as stopping:
                for one in self._hosted.values():
                    stopping.start_soon(self._stop, one)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def begin(self, node_id: str, packed: bytes, told: BackupTold, *, clears: bool = False) -> None:
        """Begin to run the backup of a node; ``told`` is called with its name, or the reason why there is none.

        ``clears``: if there is no room, one that does not serve makes room: its node finds a place at this one.
        """
        if self._nursery is None:
            told("", f"the broker {self._settings.name!r} does not run")
        elif node_id in self._asked:
            told("", f"{self._settings.name!r} has a request of this node, and has not decided about it")
        else:
            self._asked.add(node_id)
            self._nursery.start_soon(self._decide, node_id, packed, told, clears)

    async def _decide(self, node_id: str, packed: bytes, told: BackupTold, clears: bool) -> None:
        name = why = ""
        try:
            # One after the other, so that what was found free is free.
            async with self._deciding:
                name = await self._host(node_id, packed, clears=clears)
        except MeshqError as error:
            why = str(error)
        finally:
            self._asked.discard(node_id)
        told(name, why)

    async def _host(self, node_id: str, packed: bytes, *, clears: bool) -> str:
        """Begin to run a backup, and return its name; the one that runs already, if there is one.

        All is checked before another one has to go.

        Raises:
            RefusedError: this node does not run it.
            SettingsError: the request is wrong.
            DamagedError: the store is damaged.
            NotActiveError: the host stops.
        """
        plan, name = self._plan, self._plan.name_for(node_id)
        if name:
            return name
        request = self._read(node_id, packed)
        plan.places_for(request, self._cleared(clears))
        await self._look(request, plan.taken(self._cleared(clears)))
        cleared = self._cleared(clears)
        places = plan.places_for(request, cleared)
        broker = self._made(request, places)
        if cleared:
            # Its place is free once it has stopped.  If it takes over meanwhile, the next node of its pair may.
            await self._stop(self._hosted[cleared], failover=True)
        nursery = self._going
        plan.accept(request, places)
        self._hosted[node_id] = one = RunningBackup(broker, request.name, node_id, request.url)
        nursery.start_soon(self._run, one)
        return places.name

    @property
    def _going(self) -> trio.Nursery:
        """The nursery of the backups.  Raises: NotActiveError: the host stops."""
        if self._nursery is None:
            raise NotActiveError(f"the broker {self._settings.name!r} stops")
        return self._nursery

    def _read(self, node_id: str, packed: bytes) -> BackupRequest:
        """Read the request of a node.  Raises: RefusedError, SettingsError."""
        request = BackupRequest.decode(packed)
        if request.node_id != node_id:
            raise RefusedError(f"a node asks for its own backup, and not for that of {request.node_id[:64]!r}")
        return request

    def _made(self, request: BackupRequest, places: HostedPlaces) -> HostedBroker:
        """Make the broker that is the backup of a node, for one life.  Raises: SettingsError."""
        local = _NamesOfHosted(self._env.local, self._settings.name, places.name)
        given = hosted_settings(self._settings, self._policy, request, places)
        return self._make(places.name, env=attrs.evolve(self._env, local=local), **given)

    def _cleared(self, clears: bool) -> str:
        """Return the node whose backup would make room; empty: none."""
        waiting = [node_id for node_id, one in self._hosted.items() if one.idle]
        return self._plan.place_of(waiting) if clears else ""

    async def _look(self, request: BackupRequest, taken: tuple[str, ...]) -> None:
        """Look at the store of a node, as it is seen from here."""
        with trio.move_on_after(LOOK_S) as patience:
            look = (look_at_store, self._env.disk, request, taken, self._plan.rules.shared_root)
            await self._env.threads.run(*look, pool=LOOK_POOL)
        if patience.cancelled_caught:
            raise RefusedError(f"the disk of {request.data_dir!r} has not answered here in {LOOK_S:g} s")

    def end(self, node_id: str, word: bytes) -> None:
        """End the backup of a node; silent without one, and for one that serves.  ``word``: what the node says."""
        one = self._hosted.get(node_id)
        if one is not None and one.idle:
            self._start_end(one, partial(self._end, one))

    def _start_end(self, one: RunningBackup, work: Callable[[], Awaitable[None]]) -> None:
        """Begin to end a backup, unless that is under way: its node says it again at each look."""
        if self._nursery is not None and one.node_id not in self._ending:
            self._ending.add(one.node_id)
            self._nursery.start_soon(self._ended, one, work)

    async def _ended(self, one: RunningBackup, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._ending.discard(one.node_id)

    def end_by_hand(self, name: str, told: EndTold, *, force: bool) -> None:
        """Begin to end a backup whose node is gone for good, as an operator says; ``told`` is called once.

        ``force``: also if the node answers, or the backup serves.
        """
        if self._nursery is None:
            told(NotActiveError(f"the broker {self._settings.name!r} does not run"))
        else:
            self._nursery.start_soon(self._end_by_hand, name, told, force)

    async def _end_by_hand(self, name: str, told: EndTold, force: bool) -> None:
        ended: EndedBackup | MeshqError = NotActiveError(f"the broker {self._settings.name!r} stops")
        try:
            async with self._deciding:
                ended = await self._end_named(name, force=force)
            _log.info("%s, the backup of %s, was ended by hand", name, ended.requester, extra={"event": "backup_ended"})
        except MeshqError as error:
            ended = error
        finally:
            told(ended)

    async def _end_named(self, name: str, *, force: bool) -> EndedBackup:
        """End a backup for good; the store stays, and the result names its directory.

        Raises:
            NotFoundError: there is none of this name.
            RefusedError: its node answers, it serves, or its store can't be put aside.
            NotActiveError: the host stops.
        """
        one = self._running(name)
        if not force:
            if one.serves:
                text = f"{name} serves in place of {one.requester!r}: what it has would be out of reach"
                raise RefusedError(f"{text}: move its messages first, or force=True ends it")
            if one.broker.ha.phase in ("syncing", "in_sync"):
                raise RefusedError(f"{one.requester!r} is there, and {name} follows it: force=True ends it")
            await check_gone(self._env, repr(one.requester), one.url)
            one = self._running(name)
            if one.serves:
                raise RefusedError(f"{name} has begun to serve in place of {one.requester!r}")
        places = self._plan.places_of(one.node_id)
        # One that serves keeps its store from other backups, as at any stop.
        await self._stop(one, failover=not one.serves)
        directory = await self._put_aside(one, places)
        return EndedBackup(name=name, requester=one.requester, node_id=one.node_id, directory=directory)

    def _running(self, name: str) -> RunningBackup:
        for one in self._hosted.values():
            if one.broker.name == name:
                return one
        there = ", ".join(one.broker.name for one in self._hosted.values()) or "none"
        raise NotFoundError(f"{self._settings.name!r} runs no backup {short(name)}; it runs: {there}")

    async def _put_aside(self, one: RunningBackup, places: HostedPlaces) -> str:
        """Return where the store of a backup lies that has ended by hand: where it was, as other nodes share it."""
        await trio.lowlevel.checkpoint()
        return places.data_dir

    async def _stop(self, one: RunningBackup, failover: bool = False) -> None:
        """Stop a backup within the time that the host has for its own stop; after that it ends as after a crash.

        What goes wrong with it is logged, and stops nothing else.
        """
        one.leaves.set()
        bound = self._settings.stop_timeout + STOP_GRACE_S
        problem: object = f"it took {bound:g} s"
        if one.broker.state in ("failed", "stopped"):
            problem = None
        elif one.broker.state != "new":
            with trio.move_on_after(bound):
                try:
                    await one.broker.stop(failover)
                    problem = None
                except Exception as error:
                    problem = error
            if problem is not None:
                one.complain("has not stopped cleanly, and is cancelled: %s", problem)
        if problem is not None:
            one.scope.cancel()
        await one.gone.wait()

    async def _end(self, one: RunningBackup) -> None:
        """Stop a backup of a node that has another backup elsewhere."""
        await self._stop(one, True)

    async def _run(self, one: RunningBackup) -> None:
        """Run a backup until it ends."""
        try:
            await self._live(one)
        finally:
            del self._hosted[one.node_id]
            self._plan.ended(one.node_id, begun=one.began)
            one.gone.set()

    async def _live(self, one: RunningBackup) -> None:
        """Run a backup for one life; its failure is logged, and ends nothing else."""
        name, emit, plan = one.broker.name, self._emit, self._plan

        class Began:
            def started(self, value: None = None) -> None:
                one.began, one.problem = True, ""
                plan.began(one.node_id)
                emit(ColocatedBackupStarted, name=name, requester=one.requester)

        _log.info("%s runs as the backup of %s", name, one.requester, extra={"event": "backup_hosted"})
        try:
            with one.scope:
                await one.broker.run(task_status=Began())
        except Exception as error:
            one.complain("has ended: %s", error)
