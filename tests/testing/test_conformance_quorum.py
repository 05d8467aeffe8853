"""A quorum in memory keeps the promises of a provider, and the suite notices those that don't."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio import TaskStatus

from meshq.abc import QuorumProvider, QuorumRecord, QuorumSession
from meshq.errors import ConnectionBrokenError, RefusedError
from meshq.ha.quorum import SessionBlock
from meshq.testing import QUORUM_CHECKS, MakeQuorum, MemoryQuorum, NonconformanceError, check_quorum
from meshq.testing._quorum import MemoryQuorumSession


@pytest.mark.parametrize("check", QUORUM_CHECKS)
async def test_a_quorum_in_memory_conforms(check: Callable[[MakeQuorum], Awaitable[None]]) -> None:
    quorum = MemoryQuorum()
    await check(lambda: quorum)


class Faulty(QuorumProvider):
    """A quorum in memory whose sessions are of another class."""

    def __init__(self, kind: type[MemoryQuorumSession]) -> None:
        self._quorum = MemoryQuorum()
        self._kind = kind

    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        return SessionBlock(self._kind(self._quorum, self._quorum.place(node_id), instance))


class KeepsAtTheEnd(MemoryQuorumSession):
    async def end(self) -> None:
        self._running.cancel()
        await trio.lowlevel.checkpoint()


class Everybody(MemoryQuorumSession):
    async def acquire(self) -> bool:
        self._place.holder = b""
        return await super().acquire()


class NeverRenewed(MemoryQuorumSession):
    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        with self._running:
            await trio.sleep_forever()


class SetsWhateverIsThere(MemoryQuorumSession):
    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        return await super().compare_and_set(await self.read(), new)


class SetsWithoutTheLock(MemoryQuorumSession):
    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        try:
            return await super().compare_and_set(expected, new)
        except RefusedError:
            self._place.record = new
            return True


class KeepsWhatItReleases(MemoryQuorumSession):
    async def release(self) -> None:
        self._lock.end()
        await trio.lowlevel.checkpoint()


class NeverLost(MemoryQuorumSession):
    async def lost(self) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Everybody, "one session holds the lock at a time"),
        (KeepsAtTheEnd, "the lock of a session whose block was left is free"),
        (NeverRenewed, "a lock is renewed before it runs out"),
        (SetsWhateverIsThere, "another record than expected is not replaced"),
        (SetsWithoutTheLock, "a session without the lock stores nothing"),
        (KeepsWhatItReleases, "a lock that was given back is got"),
        (NeverLost, "lost returns when the lock was given back"),
    ],
)
async def test_a_quorum_with_a_fault_does_not_conform(kind: type[MemoryQuorumSession], promise: str) -> None:
    # With a long session a lock that was not given back is not free in the time of the suite.
    quorum = Faulty(kind)
    quorum._quorum.session_s = 1_000.0
    with pytest.raises(NonconformanceError, match=promise):
        await check_quorum(lambda: quorum)


async def test_a_node_that_is_cut_off_loses_the_lock_before_another_one_gets_it() -> None:
    """F48, F51: a pause of less than a third of the session keeps it; a longer one loses it, and never two hold it."""
    quorum = MemoryQuorum(session=18.0)
    node_id = bytes(16)
    async with quorum.session(node_id, b"a") as first, quorum.session(node_id, b"b") as second:
        assert await first.acquire()
        began = trio.current_time()
        quorum.cut(b"a")
        await trio.sleep(3.9)
        quorum.heal(b"a")
        await trio.sleep(2.0)
        assert first.held_until > trio.current_time()
        quorum.cut(b"a")
        with pytest.raises(ConnectionBrokenError):
            await first.read()
        await first.lost()
        assert trio.current_time() - began <= 6.0 + 18.0 * 0.33
        assert not await second.acquire()
        await trio.sleep(18.0 * 0.67)
        assert await second.acquire()
        quorum.heal(b"a")
        await trio.sleep(10.0)
        assert first.held_until == 0.0
        with pytest.raises(RefusedError, match="not held"):
            await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
