"""The conformance suite for ``abc.QuorumProvider``."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from meshq.abc import QuorumProvider, QuorumRecord, QuorumSession
from meshq.concurrency import first_error
from meshq.env import default_env
from meshq.errors import RefusedError
from meshq.ids import IDENTITY_BYTES
from meshq.testing.conformance._assertions import expect, expect_equal, expect_raises

MakeQuorum = Callable[[], QuorumProvider]

#: Seconds within which a lock that was given back is got.
PATIENCE_S: Final = 30.0
#: Nodes that want one lock at once.
CANDIDATES: Final = 5


async def check_quorum(make: MakeQuorum) -> None:
    """Check that a quorum provider keeps the contract of ``meshq.abc.QuorumProvider``.

    ``make`` is called for each node of a check: every provider that it returns asks the same quorum.  Each check of
    ``QUORUM_CHECKS`` takes node ids of its own, so a quorum may be used again.  One check waits until a lock was
    renewed, so give the quorum a short session.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the provider breaks a promise.
    """
    for check in QUORUM_CHECKS:
        await check(make)


def _id() -> bytes:
    return default_env().entropy.token(IDENTITY_BYTES)


async def _gets_it(session: QuorumSession, dice: random.Random | None = None) -> bool:
    with trio.move_on_after(PATIENCE_S):
        while True:
            if await session.acquire():
                return True
            await trio.sleep(0.05 if dice is None else dice.uniform(0.001, 0.05))
    return False


async def _a_node_id_that_nobody_has_claimed_has_the_record_zero(make: MakeQuorum) -> None:
    async with make().session(_id(), _id()) as session:
        expect_equal(session.held_until, 0.0, "a session begins without the lock")
        expect_equal(await session.read(), QuorumRecord(), "the record of a node id that nobody has claimed is zero")


async def _one_session_holds_the_lock(make: MakeQuorum) -> None:
    node_id = _id()
    async with make().session(node_id, _id()) as first, make().session(node_id, _id()) as second:
        expect(await _gets_it(first), "a lock that is free is got")
        expect(first.held_until > trio.current_time(), "held_until of the holder lies ahead")
        expect(not await second.acquire(), "one session holds the lock at a time")
        expect_equal(second.held_until, 0.0, "held_until without the lock is 0.0")
        expect(await first.acquire(), "the holder that acquires again holds the lock")


async def _node_ids_have_locks_of_their_own(make: MakeQuorum) -> None:
    async with make().session(_id(), _id()) as first, make().session(_id(), _id()) as second:
        expect(await _gets_it(first) and await _gets_it(second), "each node id has a lock of its own")
        await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=7))
        expect_equal(await second.read(), QuorumRecord(), "each node id has a record of its own")


async def _a_lock_that_is_given_back_is_got_at_once(make: MakeQuorum) -> None:
    node_id = _id()
    async with make().session(node_id, _id()) as first, make().session(node_id, _id()) as second:
        expect(await _gets_it(first), "a lock that is free is got")
        began, until = trio.current_time(), first.held_until
        await first.release()
        expect_equal(first.held_until, 0.0, "held_until after a release is 0.0")
        expect(await _gets_it(second), "a lock that was given back is got")
        expect(trio.current_time() - began < max(PATIENCE_S / 2, until - began), "it is got at once")
        await first.release()
        expect(second.held_until > 0.0 and not await first.acquire(), "a release without the lock changes nothing")


async def _a_block_that_is_left_gives_the_lock_back(make: MakeQuorum) -> None:
    node_id = _id()
    async with make().session(node_id, _id()) as first:
        expect(await _gets_it(first), "a lock that is free is got")
    async with make().session(node_id, _id()) as second:
        expect(await _gets_it(second), "the lock of a session whose block was left is free")


async def _the_lock_is_kept_while_the_block_lasts(make: MakeQuorum) -> None:
    node_id = _id()
    async with make().session(node_id, _id()) as first, make().session(node_id, _id()) as second:
        expect(await _gets_it(first), "a lock that is free is got")
        await trio.sleep_until(first.held_until + 0.001)
        expect(first.held_until > trio.current_time(), "a lock is renewed before it runs out")
        expect(not await second.acquire(), "a lock that was renewed is held")


async def _lost_returns_when_the_lock_is_not_held(make: MakeQuorum) -> None:
    async with make().session(_id(), _id()) as session:
        expect(await _gets_it(session), "a lock that is free is got")
        with trio.move_on_after(0.01) as scope:
            await session.lost()
        expect(scope.cancelled_caught, "lost waits while the lock is held")
        expect(session.held_until > 0.0, "a lost that was cancelled keeps the lock")
        await session.release()
        with trio.move_on_after(PATIENCE_S) as scope:
            await session.lost()
        expect(not scope.cancelled_caught, "lost returns when the lock was given back")


async def _a_record_comes_back_as_it_was_stored(make: MakeQuorum) -> None:
    node_id = _id()
    new = QuorumRecord(epoch=2**40, sequence=3, claimed=4, in_sync=("nord", "süd 2"), holder="nord")
    async with make().session(node_id, _id()) as first, make().session(node_id, _id()) as second:
        expect(await _gets_it(first), "a lock that is free is got")
        expect(await first.compare_and_set(QuorumRecord(), new), "what is expected is replaced")
        expect_equal(await first.read(), new, "the holder reads what it has stored")
        expect_equal(await second.read(), new, "another session reads what was stored")


async def _another_record_than_expected_is_not_replaced(make: MakeQuorum) -> None:
    async with make().session(_id(), _id()) as session:
        expect(await _gets_it(session), "a lock that is free is got")
        stored = await session.compare_and_set(QuorumRecord(epoch=1), QuorumRecord(epoch=2))
        expect(not stored, "another record than expected is not replaced")
        expect_equal(await session.read(), QuorumRecord(), "a refused compare_and_set changes nothing")


async def _only_the_holder_stores(make: MakeQuorum) -> None:
    node_id = _id()
    async with make().session(node_id, _id()) as first, make().session(node_id, _id()) as second:
        with expect_raises(RefusedError, "a session without the lock stores nothing"):
            await second.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        expect(await _gets_it(first), "a lock that is free is got")
        with expect_raises(RefusedError, "a session without the lock stores nothing"):
            await second.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        await first.release()
        with expect_raises(RefusedError, "a session that has given the lock back stores nothing"):
            await first.compare_and_set(QuorumRecord(), QuorumRecord(epoch=1))
        expect_equal(await second.read(), QuorumRecord(), "what was refused is not stored")


async def _many_that_count_miss_no_number(make: MakeQuorum) -> None:
    """Nodes that take the lock in turn, each adding one: a lost update, and two holders at once, show in the sum."""
    node_id, holders, dice = _id(), 0, random.Random(7)

    async def count(session: QuorumSession) -> None:
        nonlocal holders
        for _ in range(3):
            expect(await _gets_it(session, dice), "nodes that want one lock get it in turn")
            holders += 1
            expect_equal(holders, 1, "one session holds the lock at a time")
            record = await session.read()
            new = attrs.evolve(record, sequence=record.sequence + 1)
            expect(await session.compare_and_set(record, new), "the record of a held lock is changed by nobody else")
            holders -= 1
            await session.release()

    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(make().session(node_id, _id())) for _ in range(CANDIDATES)]
        try:
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(count, session)
        except BaseExceptionGroup as group:
            raise first_error(group) from group
        expect_equal((await sessions[0].read()).sequence, 3 * CANDIDATES, "no update is lost")


#: The checks of the suite, in order.
QUORUM_CHECKS: Final[tuple[Callable[[MakeQuorum], Awaitable[None]], ...]] = (
    _a_node_id_that_nobody_has_claimed_has_the_record_zero,
    _one_session_holds_the_lock,
    _node_ids_have_locks_of_their_own,
    _a_lock_that_is_given_back_is_got_at_once,
    _a_block_that_is_left_gives_the_lock_back,
    _the_lock_is_kept_while_the_block_lasts,
    _lost_returns_when_the_lock_is_not_held,
    _a_record_comes_back_as_it_was_stored,
    _another_record_than_expected_is_not_replaced,
    _only_the_holder_stores,
    _many_that_count_miss_no_number,
)
