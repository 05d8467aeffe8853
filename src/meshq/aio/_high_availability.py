"""The role of a broker's node, as tasks of asyncio see it."""

from __future__ import annotations

from typing import Final

from meshq import node as trio_node
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.node import RoleFigures


class ReplicaStore:
    """The store of a replica of a broker's node, as tasks of asyncio see it.  ``name``: the replica's."""

    def __init__(self, inner: trio_node.ReplicaStore, loop: TaskLoop) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._call = loop.call_active

    def __repr__(self) -> str:
        return repr(self._inner)

    diff: Final = forwarded(trio_node.ReplicaStore.diff)


class HighAvailability(RoleFigures):
    """The role of a broker's node among the nodes of its pair; every field is a plain read."""

    def __init__(self, inner: trio_node.HighAvailability, loop: TaskLoop) -> None:
        super().__init__(inner._run)
        self._inner = inner
        self._loop = loop
        self._call = loop.call_active

    def replica(self, name: str) -> ReplicaStore:
        """Return the store of the replica of this name, to compare it with the node's own; nothing is asked yet."""
        return ReplicaStore(self._inner.replica(name), self._loop)

    wait_for: Final = forwarded(trio_node.HighAvailability.wait_for)
    fail_over: Final = forwarded(trio_node.HighAvailability.fail_over)
    fail_back: Final = forwarded(trio_node.HighAvailability.fail_back)
    end_backup: Final = forwarded(trio_node.HighAvailability.end_backup)
