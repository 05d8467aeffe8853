"""A quorum in memory, for tests."""

from __future__ import annotations

import errno
from contextlib import AbstractAsyncContextManager

import attrs
import trio
from trio import TaskStatus

from meshq.abc import QuorumProvider, QuorumRecord, QuorumSession
from meshq.errors import ConnectionBrokenError, RefusedError
from meshq.ha.quorum import RENEWALS, HeldLock, RunningSession, SessionBlock


@attrs.define
class _Place:
    """The lock and the record of a node id; from ``free_at`` on others may have the lock."""

    record: QuorumRecord = attrs.field(factory=QuorumRecord)
    holder: bytes = b""
    free_at: float = 0.0


class MemoryQuorum(QuorumProvider):
    """A quorum in memory; its nodes are tasks of one event loop.

    ``session``: seconds after which the lock of a node that is cut off is free.  ``session_percent``: the part of these
    for which such a node still holds it.  ``cut(instance)`` cuts a node off, and ``heal(instance)`` ends that.
    """

    def __init__(self, *, session: float = 18.0, session_percent: float = 33.0) -> None:
        #: Seconds of a session.
        self.session_s: float = session
        #: Seconds for which a renewal holds.
        self.lease_s: float = session * session_percent / 100
        self._places: dict[bytes, _Place] = {}
        self._cut: dict[bytes, None] = {}

    def cut(self, instance: bytes) -> None:
        """Let a node not reach the quorum any more."""
        self._cut[instance] = None

    def heal(self, instance: bytes) -> None:
        """Let a node reach the quorum again."""
        self._cut.pop(instance, None)

    def record(self, node_id: bytes) -> QuorumRecord:
        """Return the record of a node id."""
        return self.place(node_id).record

    def place(self, node_id: bytes) -> _Place:
        """Return the lock and the record of a node id."""
        return self._places.setdefault(node_id, _Place())

    def reaches(self, instance: bytes) -> bool:
        """Whether a node can ask the quorum."""
        return instance not in self._cut

    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        """The part of a node in the quorum, until the block is left."""
        return SessionBlock(MemoryQuorumSession(self, self.place(node_id), instance))


class MemoryQuorumSession(RunningSession):
    """The part of a node in a quorum in memory."""

    def __init__(self, quorum: MemoryQuorum, place: _Place, instance: bytes) -> None:
        self._quorum = quorum
        self._place = place
        self._instance = instance
        self._lock = HeldLock()
        self._running = trio.CancelScope()

    @property
    def held_until(self) -> float:
        """The moment until which the lock is surely held; 0.0 when it is not held."""
        return self._lock.until

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew the lock while it is held."""
        task_status.started()
        with self._running:
            while True:
                await self._lock.wait_taken()
                await trio.sleep(self._quorum.lease_s / RENEWALS)
                if self._quorum.reaches(self._instance) and self._lock.until:
                    now = trio.current_time()
                    self._place.free_at = now + self._quorum.session_s
                    self._lock.renew(now + self._quorum.lease_s, self._lock.number)

    async def end(self) -> None:
        """Give the lock back."""
        self._running.cancel()
        await self.release()

    async def read(self) -> QuorumRecord:
        """Return the record."""
        await self._ask()
        return self._place.record

    async def acquire(self) -> bool:
        """Try to get the lock."""
        await self._ask()
        now, place = trio.current_time(), self._place
        if place.holder not in (b"", self._instance) and now < place.free_at:
            return False
        place.holder, place.free_at = self._instance, now + self._quorum.session_s
        self._lock.take(now + self._quorum.lease_s)
        return True

    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store a record in the place of another one."""
        await self._ask()
        if not self._lock.until:
            raise RefusedError("the lock of the node id is not held", outcome="not_done")
        if self._place.record != expected:
            return False
        self._place.record = new
        return True

    async def release(self) -> None:
        """Give the lock back."""
        self._lock.end()
        if self._place.holder == self._instance and self._quorum.reaches(self._instance):
            self._place.holder, self._place.free_at = b"", 0.0
        await trio.lowlevel.checkpoint()

    async def lost(self) -> None:
        """Wait until the lock is not held."""
        await self._lock.wait_lost()

    async def _ask(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._quorum.reaches(self._instance):
            cut = OSError(errno.EHOSTUNREACH, "cut off by the test")
            raise ConnectionBrokenError("the quorum can't be reached", outcome="not_done") from cut
