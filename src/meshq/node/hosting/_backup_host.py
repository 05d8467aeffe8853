"""A node that runs the backups of other nodes in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import outcome
import trio

from meshq import abc
from meshq.errors import MeshqError, NotActiveError, RefusedError
from meshq.ha.colocated import BackupRequest, Colocated, HostingPlan
from meshq.logs import logger
from meshq.node._settings import BrokerSettings
from meshq.node.hosting._hosted_backup import HostedBackup
from meshq.node.hosting._hosted_settings import host_rules, hosted_settings
from meshq.node.terms._high_availability import RoleFigures
from meshq.notifications import ColocatedBackupStarted

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
class _RunningBackup:
    """A backup that runs."""

    broker: HostedBroker
    requester: str
    node_id: str

    @property
    def idle(self) -> bool:
        """Whether it neither serves nor is about to."""
        return self.broker.state == "waiting" and self.broker.ha.role == "backup"

    def seen(self) -> HostedBackup:
        broker = self.broker
        return HostedBackup(
            name=broker.name,
            requester=self.requester,
            node_id=self.node_id,
            state=broker.state,
            role=broker.ha.role,
            phase=broker.ha.phase,
            urls=tuple(broker.urls),
            last_error=broker.ha.last_error,
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
        self._hosted: dict[str, _RunningBackup] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def backups(self) -> tuple[HostedBackup, ...]:
        """The backups that run, in the order of their making."""
        return tuple(one.seen() for one in self._hosted.values())

    def values(self, node_id: str = "") -> dict[str, Any]:
        """Return the values of an answer about the backups; ``node_id``: the node whose backup ``mine`` names."""
        return {
            "backups": self._plan.backups,
            "max_backups": self._policy.max_backups,
            "mine": self._plan.name_for(node_id),
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
                    if one.broker.state != "new":
                        stopping.start_soon(one.broker.stop)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def host(self, node_id: str, packed: bytes, *, clears: bool = False) -> str:
        """Begin to run the backup of a node, and return its name; the one that runs already, if there is one.

        ``clears``: if there is no room, one that does not serve makes room: its node finds a place at this one.

        Raises:
            RefusedError: this node does not run it.
            SettingsError: the request is wrong.
            NotActiveError: the host stops.
        """
        if self._nursery is None:
            raise NotActiveError(f"the broker {self._settings.name!r} does not run")
        name = self._plan.name_for(node_id)
        if name:
            return name
        request = BackupRequest.decode(packed)
        if request.node_id != node_id:
            raise RefusedError(f"a node asks for its own backup, and not for that of {request.node_id[:64]!r}")
        waiting = [one for one, found in self._hosted.items() if found.idle]
        cleared = self._plan.place_of(waiting) if clears else ""
        if cleared:
            self._plan.ended(cleared)
            self._nursery.start_soon(self._end, self._hosted.pop(cleared))
        places = self._plan.accept(request)
        try:
            given = hosted_settings(self._settings, self._policy, request, places)
            local = _NamesOfHosted(self._env.local, self._settings.name, places.name)
            broker = self._make(places.name, env=attrs.evolve(self._env, local=local), **given)
        except MeshqError:
            self._plan.ended(node_id)
            raise
        self._hosted[node_id] = one = _RunningBackup(broker, request.name, node_id)
        self._nursery.start_soon(self._run, one)
        return places.name

    def end(self, node_id: str) -> None:
        """End the backup of a node that another one backs; silent without one, and for one that serves."""
        one = self._hosted.get(node_id)
        if one is not None and one.idle and self._nursery is not None:
            self._nursery.start_soon(self._end, one)

    async def _end(self, one: _RunningBackup) -> None:
        """Stop a backup; if it takes over in this moment, the next node of its pair may."""
        await one.broker.stop(True)

    async def _run(self, one: _RunningBackup) -> None:
        """Run a backup until it ends; its failure is logged, and ends nothing else."""
        name, emit = one.broker.name, self._emit

        class Began:
            def started(self, value: None = None) -> None:
                emit(ColocatedBackupStarted, name=name, requester=one.requester)

        _log.info("%s runs as the backup of %s", name, one.requester, extra={"event": "backup_hosted"})
        ended = await outcome.acapture(one.broker.run, task_status=Began())
        if self._hosted.get(one.node_id) is one:
            del self._hosted[one.node_id]
            self._plan.ended(one.node_id)
        if isinstance(ended, outcome.Error) and isinstance(ended.error, Exception):
            text = "%s, the backup of %s, has ended: %s"
            _log.warning(text, name, one.requester, ended.error, extra={"event": "hosted_backup_failed"})
        else:
            ended.unwrap()
