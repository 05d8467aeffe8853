"""The role of a node among the nodes of its pair, as its policy sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import attrs

from meshq.abc._replicas import ReplicaHost


@attrs.frozen(kw_only=True)
class RoleMember:
    """Another node of a pair, or the node itself.

    ``url``: where it is reached; empty: nowhere that is known.  ``epoch``: of its turn; 0: it waits.
    """

    name: str
    url: str = ""
    epoch: int = 0


@attrs.frozen(kw_only=True)
class Replica:
    """A node that follows the log of the active node, as the active node sees it.

    ``instance``: this life of it.  ``url``: where it is reached; empty: nowhere that is known.  ``in_sync``: it has all
    that was confirmed.  ``since``: when it came, on the clock of the loop.  ``dropped_reason``: why it is not waited
    for any more; empty: it is there.
    """

    name: str
    instance: bytes = b""
    url: str = ""
    in_sync: bool = False
    records_behind: int = 0
    bytes_behind: int = 0
    since: float = 0.0
    dropped_reason: str = ""


@attrs.frozen(kw_only=True)
class Difference:
    """The first record that differs between the store of the active node and that of a replica.

    ``here``, ``there``: a digest of the record in the one and in the other; None: it is not there, or is deleted there.
    """

    position: int
    here: bytes | None
    there: bytes | None


class StoreComparer(ABC):
    """The part of a policy that compares stores."""

    @abstractmethod
    async def compare(self, replica: str) -> Difference | None:
        """Compare the store of the active node with that of a replica; return the first difference, if there is one.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            NotFoundError: no node of that name follows.
            RefusedError: the replica is not in sync, or was lost meanwhile; or can't read its store.
            BrokenError, DamagedError, OSError: the active node can't read its own store.
        """


@attrs.frozen(kw_only=True)
class RoleReport:
    """The role of a node at one moment.

    ``role``: ``live_only``, ``primary`` (it serves, or is about to) or ``backup``.  ``phase``: what it does now.
    ``reason``: why the role is another one than before.  ``epoch``: of its own turn, or the highest that it knows.
    ``acting``: the node that serves, as far as that is known.  ``waiting``: the nodes that would take over, the next
    one first.  ``in_sync``: the names of the nodes that have all that was confirmed, as far as this node knows;
    ``replicas``: those that follow, and the last one that was dropped.  ``records_behind``, ``bytes_behind``: of the
    node itself, if it follows.  ``unprotected``: it serves without a replica that its policy asks for.
    ``last_error``: the last thing that went wrong, or why the node waits; empty: nothing did since it serves.
    """

    role: str = "live_only"
    phase: str = "waiting"
    reason: str = ""
    epoch: int = 0
    acting: RoleMember | None = None
    waiting: tuple[RoleMember, ...] = ()
    in_sync: tuple[str, ...] = ()
    replicas: tuple[Replica, ...] = ()
    records_behind: int = 0
    bytes_behind: int = 0
    unprotected: bool = False
    last_error: str = ""


class RoleBoard:
    """The present report of a node's policy, for all parts of its broker."""

    def __init__(self) -> None:
        #: The report.
        self.report: RoleReport = RoleReport()
        #: Lets other nodes follow the log of this one, while it is active; None: nobody may.
        self.replicas: ReplicaHost[Any, Any, Any] | None = None
        #: Compares the store of this node with those of its replicas; None: its policy has none.
        self.comparer: StoreComparer | None = None
        #: Votes about other nodes, while this one is active; None: it does not.
        self.voter: ReplicaHost[Any, Any, Any] | None = None
        #: Notifies the watchers of the broker; None: nobody watches it yet.
        self.notify: Callable[..., None] | None = None
        self._watchers: dict[Callable[[], None], None] = {}

    def show(self, report: RoleReport) -> None:
        """Replace the report, and tell the watchers if it is another one."""
        if report != self.report:
            self.report = report
            for watcher in list(self._watchers):
                watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` with each change from now on.  Twice is silent."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """End that.  Twice is silent."""
        self._watchers.pop(watcher, None)
