"""The role of a broker's node, as programs see it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, Protocol

import trio

from meshq.abc import Replica, RoleBoard, RoleMember
from meshq.broker import EndTold
from meshq.concurrency import ChangeSignal
from meshq.errors import CallTimeoutError, MeshqError, SettingsError, UsageError
from meshq.loops import check_in_trio
from meshq.node._cluster_in_thread import LoopCalls
from meshq.node.hosting._hosted_backup import HostedBackup
from meshq.node.terms._replica_store import ReplicaStore, ReplicaStoreInThread
from meshq.settings import check_bool, check_seconds
from meshq.statistics import EndedBackup

_ROLES: Final = ("live_only", "primary", "backup")


#: Characters of the last error in an answer: a frame has room for that.
ERROR_CHARACTERS_MAX: Final = 500


class RoleHolder(Protocol):
    """The run of a broker, as its role needs it."""

    @property
    def name(self) -> str:
        """The name of the broker."""

    @property
    def board(self) -> RoleBoard:
        """The role of the node."""

    @property
    def policy_kind(self) -> str:
        """The kind of the policy."""

    @property
    def instance(self) -> bytes:
        """The identity of this life."""

    @property
    def hosted(self) -> tuple[HostedBackup, ...]:
        """The backups of other nodes that run here."""

    @property
    def role_since_ms(self) -> int:
        """When the role changed last."""

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Hand the role over."""

    def end_backup(self, name: str, told: EndTold, *, force: bool) -> None:
        """Begin to end a backup that runs here."""


class RoleFigures:
    """The role of a broker's node among the nodes of its pair; every field is a plain read, in any thread."""

    def __init__(self, run: RoleHolder) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<HighAvailability {self.policy} {self.role} {self.phase} epoch={self.epoch}>"

    @property
    def _board(self) -> RoleBoard:
        return self._run.board

    @property
    def policy(self) -> str:
        """The kind of the policy: ``live_only``, ``shared_store_primary``, ``shared_store_backup``,
        ``replication_primary``, ``replication_backup``, ``colocated`` or ``custom``."""
        return self._run.policy_kind

    @property
    def role(self) -> str:
        """``live_only``; ``primary`` (it serves, or is about to) or ``backup``."""
        return self._board.report.role

    @property
    def phase(self) -> str:
        """``waiting``, ``activating``, ``active``, ``failing_back``, ``isolated`` or ``stopped``; by replication also
        ``searching``, ``syncing`` and ``in_sync``."""
        return self._board.report.phase

    @property
    def epoch(self) -> int:
        """The epoch of the node that serves, as far as this node knows; 0: there was none."""
        return self._board.report.epoch

    @property
    def acting(self) -> RoleMember | None:
        """The node that serves, as far as that is known."""
        return self._board.report.acting

    @property
    def waiting(self) -> tuple[RoleMember, ...]:
        """The other nodes that wait to take over, in the order in which they come."""
        return self._board.report.waiting

    @property
    def instance(self) -> bytes:
        """The identity of this life of the broker: 16 random bytes; empty before the start."""
        return self._run.instance

    @property
    def since(self) -> int:
        """When the role changed last: milliseconds since 1970, UTC; 0: it never did."""
        return self._run.role_since_ms

    @property
    def unprotected(self) -> bool:
        """Whether the node serves without a replica that its policy asks for; never with a shared store."""
        return self._board.report.unprotected

    @property
    def in_sync(self) -> tuple[str, ...]:
        """The names of the nodes that have all that was confirmed, as far as this node knows; by replication only."""
        return self._board.report.in_sync

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas of the node, and the last replica that was dropped."""
        return self._board.report.replicas

    @property
    def records_behind(self) -> int:
        """How many records this node has been given by the one that it follows, and does not have on its disk yet."""
        return self._board.report.records_behind

    @property
    def bytes_behind(self) -> int:
        """How many bytes that is."""
        return self._board.report.bytes_behind

    @property
    def hosted(self) -> tuple[HostedBackup, ...]:
        """The backups of other nodes that the broker runs, as they are now."""
        return self._run.hosted

    @property
    def last_error(self) -> str:
        """The last thing that went wrong in the competition for the role; empty: nothing did."""
        return self._board.report.last_error


class HighAvailability(RoleFigures):
    """The role of a broker's node among the nodes of its pair; every field is a plain read."""

    def __init__(self, run: RoleHolder) -> None:
        super().__init__(run)
        self._changed = ChangeSignal()
        run.board.watch(self._changed.tell)

    def replica(self, name: str) -> ReplicaStore:
        """Return the store of the replica of this name, to compare it with the node's own; nothing is asked yet."""
        return ReplicaStore(name, self._board)

    async def wait_for(
        self,
        role: str | None = None,
        phase: str | None = None,
        epoch: int | None = None,
        timeout: float = math.inf,  # noqa: ASYNC109
        *,
        in_sync: bool | None = None,
        replicas: int | None = None,
    ) -> None:
        """Wait until all that is given is so: a role, a phase, at least an epoch.

        ``in_sync``: of the node that serves, whether a replica has all that was confirmed; of one that follows, whether
        it has.  ``replicas``: how many have it.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            CallTimeoutError: it was not so within ``timeout`` seconds; the error says what is missing.
            UsageError: there is no such role, or the seconds are below 0.
        """
        check_in_trio("Broker")
        if role not in (None, *_ROLES):
            raise UsageError(f"{role!r} is no role; allowed: {', '.join(_ROLES)}")
        check_seconds("timeout", timeout)
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            while self._missing(role, phase, epoch, in_sync, replicas):
                await self._changed.wait()
            return
        missing = ", ".join(self._missing(role, phase, epoch, in_sync, replicas))
        text = f"the broker {self._run.name!r} did not become what was waited for: {missing}"
        raise CallTimeoutError(text) from trio.TooSlowError(f"{timeout:g} s are over")

    def _missing(
        self, role: str | None, phase: str | None, epoch: int | None, in_sync: bool | None, replicas: int | None
    ) -> list[str]:
        missing = []
        if role is not None and self.role != role:
            missing.append(f"role {role} (it is {self.role})")
        if phase is not None and self.phase != phase:
            missing.append(f"phase {phase} (it is {self.phase})")
        if epoch is not None and self.epoch < epoch:
            missing.append(f"epoch {epoch} (it is {self.epoch})")
        there = sum(one.in_sync for one in self.replicas)
        if in_sync is not None and (there > 0 or self.phase == "in_sync") != in_sync:
            missing.append(f"in_sync {in_sync}")
        if replicas is not None and there != replicas:
            missing.append(f"{replicas} replicas in sync (there are {there})")
        return missing

    async def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Hand the role over to a waiting node, and return when that node serves.

        Of a node that waits, because the one that served was stopped: take the role.
        ``force``: nothing is finished first, and clients are not told.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            NotActiveError: this node waits, and another one serves.
            CallTimeoutError: no node serves within ``timeout`` seconds; outcome unknown.
        """
        await self._hand_over(back=False, force=force, timeout_s=timeout)

    async def fail_back(self, *, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Hand the role back to the waiting primary, and return when the primary serves.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: no primary waits, or this node is the primary; outcome not done.
            NotActiveError: this node waits.
            CallTimeoutError: the primary does not serve within ``timeout`` seconds; outcome unknown.
        """
        await self._hand_over(back=True, force=False, timeout_s=timeout)

    async def end_backup(
        self,
        name: str,
        *,
        force: bool = False,
        timeout: float = 30,  # noqa: ASYNC109
    ) -> EndedBackup:
        """End a backup that the broker runs for another node, because that node is gone for good.

        What is stored there is kept, and the result says where: a shared store as it is; by replication the directory
        gets another name, which no start takes.  ``name``: as in ``hosted``, or in a warning about one of before.
        ``force``: also if the node answers where it was, or the backup serves.

        Checkpoint: always.
        Cancellation: it is ended all the same.
        Raises:
            SettingsError: an argument has another type, or the seconds are below 0; nothing was done.
            NotFoundError: the broker runs no backup of this name.
            RefusedError: the node answers, or the backup serves, or its directory can't be renamed; outcome not done.
            NotActiveError: the broker does not run.
            CallTimeoutError: it has not ended within ``timeout`` seconds; outcome unknown.
        """
        check_in_trio("Broker")
        if not isinstance(name, str):
            raise SettingsError("name", name, "the name of a backup")
        check_bool("force", force)
        check_seconds("timeout", timeout)
        found: list[EndedBackup | MeshqError] = []
        over = trio.Event()

        def told(ended: EndedBackup | MeshqError) -> None:
            found.append(ended)
            over.set()

        self._run.end_backup(name, told, force=force)
        with trio.move_on_after(timeout):
            await trio.lowlevel.checkpoint()
            await over.wait()
        if not found:
            text = f"the backup {name!r} has not ended within {timeout:g} s"
            raise CallTimeoutError(text, outcome="unknown") from trio.TooSlowError("the time is over")
        ended = found[0]
        if isinstance(ended, MeshqError):
            raise ended
        return ended

    async def _hand_over(self, *, back: bool, force: bool, timeout_s: float) -> None:
        check_in_trio("Broker")
        check_bool("force", force)
        check_seconds("timeout", timeout_s)
        with trio.move_on_after(timeout_s):
            await self._run.hand_over(back=back, force=force)
            return
        text = f"no other node has taken over from {self._run.name!r} within {timeout_s:g} s"
        raise CallTimeoutError(text, outcome="unknown") from trio.TooSlowError("the time is over")


def role_values(run: RoleHolder) -> dict[str, Any]:
    """Return the role of a node, as operations answer it."""
    found = RoleFigures(run)
    acting = found.acting
    return {
        "policy": found.policy,
        "role": found.role,
        "phase": found.phase,
        "epoch": found.epoch,
        "since": found.since,
        "unprotected": found.unprotected,
        "acting": acting.name if acting is not None else "",
        "acting_url": acting.url if acting is not None else "",
        "last_error": found.last_error[:ERROR_CHARACTERS_MAX],
        "records_behind": found.records_behind,
        "bytes_behind": found.bytes_behind,
        "waiting": [{"waiting_name": one.name, "waiting_url": one.url} for one in found.waiting],
        "replicas": [_replica_values(one) for one in found.replicas],
    }


def _replica_values(one: Replica) -> dict[str, Any]:
    return {
        "replica_name": one.name,
        "replica_url": one.url,
        "replica_in_sync": one.in_sync,
        "replica_records_behind": one.records_behind,
        "replica_bytes_behind": one.bytes_behind,
        "replica_dropped": one.dropped_reason,
    }


class HighAvailabilityInThread(RoleFigures):
    """The role of the node of a ``BrokerInThread``, for tasks of the host; as ``HighAvailability``."""

    def __init__(self, inner: HighAvailability, broker: LoopCalls) -> None:
        super().__init__(inner._run)
        self._inner = inner
        self._broker = broker

    def replica(self, name: str) -> ReplicaStoreInThread:
        """Return the store of the replica of this name, to compare it with the node's own; nothing is asked yet."""
        return ReplicaStoreInThread(self._inner.replica(name), self._broker)

    async def wait_for(
        self,
        role: str | None = None,
        phase: str | None = None,
        epoch: int | None = None,
        timeout: float = math.inf,  # noqa: ASYNC109
        *,
        in_sync: bool | None = None,
        replicas: int | None = None,
    ) -> None:
        """Wait until all that is given is so, as ``HighAvailability.wait_for``.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            CallTimeoutError: it was not so within ``timeout`` seconds.
            UsageError: there is no such role, or the seconds are below 0.
            NotActiveError: the broker does not run.
        """
        check_in_trio("HighAvailability")
        wait_for = partial(self._inner.wait_for, role, phase, epoch, timeout, in_sync=in_sync, replicas=replicas)
        await self._broker.call(wait_for)

    async def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Hand the role over to a waiting node, as ``HighAvailability.fail_over``.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            NotActiveError: this node waits, and another one serves; or the broker does not run.
            CallTimeoutError: no node serves within ``timeout`` seconds; outcome unknown.
        """
        check_in_trio("HighAvailability")
        await self._broker.call(partial(self._inner.fail_over, force=force, timeout=timeout))

    async def fail_back(self, *, timeout: float = 30) -> None:  # noqa: ASYNC109
        """Hand the role back to the waiting primary, as ``HighAvailability.fail_back``.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: no primary waits, or this node is the primary; outcome not done.
            NotActiveError: this node waits; or the broker does not run.
            CallTimeoutError: the primary does not serve within ``timeout`` seconds; outcome unknown.
        """
        check_in_trio("HighAvailability")
        await self._broker.call(partial(self._inner.fail_back, timeout=timeout))

    async def end_backup(
        self,
        name: str,
        *,
        force: bool = False,
        timeout: float = 30,  # noqa: ASYNC109
    ) -> EndedBackup:
        """End a backup that the broker runs for a node that is gone for good, as ``HighAvailability.end_backup``.

        Checkpoint: always.
        Cancellation: it is ended all the same.
        Raises:
            SettingsError: an argument has another type, or the seconds are below 0; nothing was done.
            NotFoundError: the broker runs no backup of this name.
            NotActiveError: the broker does not run.
        """
        check_in_trio("HighAvailability")
        ended: EndedBackup = await self._broker.call(
            partial(self._inner.end_backup, name, force=force, timeout=timeout)
        )
        return ended
