"""The role of a broker's node, as threads see it."""

from __future__ import annotations

import math

from meshq import node as trio_node
from meshq.blocking._loop_thread import ThreadLoop
from meshq.node import RoleFigures


class HighAvailability(RoleFigures):
    """The role of a broker's node among the nodes of its pair; every field is a plain read."""

    def __init__(self, inner: trio_node.HighAvailability, loop: ThreadLoop) -> None:
        super().__init__(inner._run)
        self._inner = inner
        self._call = loop.call

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
            UsageError: there is no such role.
        """
        self._call(self._inner.wait_for, role, phase, epoch, timeout, in_sync=in_sync, replicas=replicas)

    def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:
        """Hand the role over to a waiting node, and return when that node serves.

        Of a node that waits, because the one that served was stopped: take the role.
        ``force``: nothing is finished first, and clients are not told.

        Interrupted: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            NotActiveError: this node waits, and another one serves.
            CallTimeoutError: no node serves within ``timeout`` seconds; outcome unknown.
        """
        self._call(self._inner.fail_over, force=force, timeout=timeout)

    def fail_back(self, *, timeout: float = 30) -> None:
        """Hand the role back to the waiting primary, and return when the primary serves.

        Interrupted: the order stands.
        Raises:
            RefusedError: no primary waits, or this node is the primary; outcome not done.
            NotActiveError: this node waits.
            CallTimeoutError: the primary does not serve within ``timeout`` seconds; outcome unknown.
        """
        self._call(self._inner.fail_back, timeout=timeout)
