"""The store of a replica, as the node that serves compares it with its own."""

from __future__ import annotations

from meshq.abc import Difference, RoleBoard
from meshq.errors import NotActiveError
from meshq.loops import check_in_trio
from meshq.node._cluster_in_thread import LoopCalls


class ReplicaStore:
    """The store of a replica of this node.  ``name``: the replica's."""

    def __init__(self, name: str, board: RoleBoard) -> None:
        self.name: str = name
        self._board = board

    def __repr__(self) -> str:
        return f"<ReplicaStore of {self.name!r}>"

    async def diff(self) -> Difference | None:
        """Compare the replica's store with the node's own; return the first record that differs, if there is one.

        All records that neither has deleted are compared by their digests, up to the position that both have on their
        disks; traffic goes on meanwhile.  The bytes of large bodies, which have files of their own, are not compared.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            NotActiveError: the node does not serve, or its policy is not replication.
            NotFoundError: no node of this name follows.
            RefusedError: the replica is not in sync, or was lost meanwhile, or can't read its store; outcome not done.
            DamagedError, OSError: the node can't read its own store.
        """
        check_in_trio("Broker")
        report, comparer = self._board.report, self._board.comparer
        if comparer is None or report.phase != "active":
            raise NotActiveError("stores are compared by the node of a pair by replication that serves")
        return await comparer.compare(self.name)


class ReplicaStoreInThread:
    """The store of a replica of the node of a ``BrokerInThread``, for tasks of the host; as ``ReplicaStore``."""

    def __init__(self, inner: ReplicaStore, broker: LoopCalls) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._broker = broker

    def __repr__(self) -> str:
        return repr(self._inner)

    async def diff(self) -> Difference | None:
        """Compare the replica's store with the node's own, as ``ReplicaStore.diff``.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            NotActiveError: the node does not serve, or its policy is not replication; or the broker does not run.
            NotFoundError: no node of this name follows.
        """
        check_in_trio("ReplicaStore")
        found: Difference | None = await self._broker.call(self._inner.diff)
        return found
