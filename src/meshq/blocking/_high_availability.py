"""The role of a broker's node, as threads see it."""

from __future__ import annotations

import math

from meshq import node as trio_node
from meshq.abc import Difference
from meshq.blocking._loop_thread import ThreadLoop
from meshq.node import RoleFigures
from meshq.statistics import EndedBackup


class ReplicaStore:
    """The store of a replica of a broker's node, as threads see it.  ``name``: the replica's."""

    def __init__(self, inner: trio_node.ReplicaStore, loop: ThreadLoop) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._call = loop.call_active

    def __repr__(self) -> str:
        return repr(self._inner)

    def diff(self) -> Difference | None:
        """Compare the replica's store with the node's own; return the first record that differs, if there is one.

        All records that neither has deleted are compared by their digests, up to the position that both have on their
        disks; traffic goes on meanwhile.  The bytes of large bodies, which have files of their own, are not compared.

        Interrupted: nothing has changed.
        Raises:
            NotActiveError: the node does not serve, or its policy is not replication.
            NotFoundError: no node of this name follows.
            RefusedError: the replica is not in sync, or was lost meanwhile, or can't read its store; outcome not done.
            DamagedError, OSError: the node can't read its own store.
        """
        return self._call(self._inner.diff)


class HighAvailability(RoleFigures):
    """The role of a broker's node among the nodes of its pair; every field is a plain read."""

    def __init__(self, inner: trio_node.HighAvailability, loop: ThreadLoop) -> None:
        super().__init__(inner._run)
        self._inner = inner
        self._loop = loop
        self._call = loop.call_active

    def replica(self, name: str) -> ReplicaStore:
        """Return the store of the replica of this name, to compare it with the node's own; nothing is asked yet."""
        return ReplicaStore(self._inner.replica(name), self._loop)

    def wait_for(
        self,
        role: str | None = None,
        phase: str | None = None,
        epoch: int | None = None,
        timeout: float = math.inf,
        *,
        in_sync: bool | None = None,
        replicas: int | None = None,
    ) -> None:
        """Wait until all that is given is so: a role, a phase, at least an epoch.

        ``in_sync``: of the node that serves, whether a replica has all that was confirmed; of one that follows, whether
        it has.  ``replicas``: how many have it.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError: it was not so within ``timeout`` seconds; the error says what is missing.
            UsageError: there is no such role, or the seconds are below 0.
            NotActiveError: the broker has ended.
        """
        self._call(self._inner.wait_for, role, phase, epoch, timeout, in_sync=in_sync, replicas=replicas)

    def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:
        """Hand the role over to a waiting node, and return when that node serves.

        Of a node that waits, because the one that served was stopped: take the role.
        ``force``: nothing is finished first, and clients are not told.

        Interrupted: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            NotActiveError: this node waits, and another one serves; or the broker has ended.
            CallTimeoutError: no node serves within ``timeout`` seconds; outcome unknown.
        """
        self._call(self._inner.fail_over, force=force, timeout=timeout)

    def fail_back(self, *, timeout: float = 30) -> None:
        """Hand the role back to the waiting primary, and return when the primary serves.

        Interrupted: the order stands.
        Raises:
            RefusedError: no primary waits, or this node is the primary; outcome not done.
            NotActiveError: this node waits; or the broker has ended.
            CallTimeoutError: the primary does not serve within ``timeout`` seconds; outcome unknown.
        """
        self._call(self._inner.fail_back, timeout=timeout)

    def end_backup(self, name: str, *, force: bool = False, timeout: float = 30) -> EndedBackup:
        """End a backup that the broker runs for another node, because that node is gone for good.

        What is stored there is kept, and the result says where: a shared store as it is; by replication the directory
        gets another name, which no start takes.  ``name``: as in ``hosted``, or in a warning about one of before.
        ``force``: also if the node answers where it was, or the backup serves.

        Interrupted: it is ended all the same.
        Raises:
            SettingsError: an argument has another type, or the seconds are below 0; nothing was done.
            NotFoundError: the broker runs no backup of this name.
            RefusedError: the node answers, or the backup serves, or its directory can't be renamed; outcome not done.
            NotActiveError: the broker does not run.
            CallTimeoutError: it has not ended within ``timeout`` seconds; outcome unknown.
        """
        return self._call(self._inner.end_backup, name, force=force, timeout=timeout)
