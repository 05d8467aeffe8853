"""The role of a node at a provider: its record changes step by step, also where answers are lost, and never twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from meshq import ConnectionBrokenError, RefusedError, RemoteProtocolError, SettingsError
from meshq.abc import QuorumRecord
from meshq.ha.quorum import NoClaim, decide_claim, without_replica
from meshq.ha.replication._quorum_role import PATIENCE_S, QuorumRole
from meshq.testing import MemoryQuorum

ID = b"i" * 16
LEASE_S = 2.0


@attrs.define
class Side:
    """A node with a counter, and what it could not do."""

    name: str
    quorum: MemoryQuorum
    counter: int = 0
    complaints: list[Exception] = attrs.field(factory=list)
    fails: int = 0

    def role(self) -> QuorumRole:
        return QuorumRole(
            self.quorum, name=self.name, instance=self.name.encode(), store=self.store, complain=self.complaints.append
        )

    async def store(self, counter: int) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            self.fails -= 1
            raise OSError("the disk")
        self.counter = counter

    @property
    def figures(self) -> tuple[int, int, int, tuple[str, ...]]:
        record = self.quorum.record(ID)
        return self.counter, record.claimed, record.sequence, record.in_sync


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Side, QuorumRole]]:
    """Give a node that serves, with the replica b in sync."""
    side = Side("a", MemoryQuorum(session=6.0, session_percent=100 * LEASE_S / 6.0))
    role = side.role()
    async with trio.open_nursery() as nursery:
        await role.open(nursery, ID)
        record = await role.claim(activation=0, epoch=0)
        assert isinstance(record, QuorumRecord) and await role.add("b")
        assert side.figures == (1, 1, 1, ("a", "b")) and role.counts("b")
        yield side, role
        nursery.cancel_scope.cancel()


async def test_a_replica_is_left_out_with_a_higher_counter_that_is_stored_first() -> None:
    async with served() as (side, role):
        assert await role.leave_out("b")
        assert side.figures == (2, 2, 2, ("a",)) and not role.may_count("b")
        # One that was never added may have the counter all the same.
        assert await role.leave_out("b")
        assert side.figures == (3, 3, 3, ("a",))


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("step", [1, 2])
async def test_a_change_in_doubt_begins_anew_unless_it_is_found_stored(
    step: int, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as (side, role):
        session, calls = role._open, 0
        real = session.compare_and_set

        async def lose(expected: QuorumRecord, new: QuorumRecord) -> bool:
            nonlocal calls
            calls += 1
            if calls == step and not answered:
                raise ConnectionBrokenError("the question is lost", outcome="unknown")
            done = await real(expected, new)
            if calls == step:
                raise ConnectionBrokenError("the answer is lost", outcome="unknown")
            return done

        monkeypatch.setattr(session, "compare_and_set", lose)
        assert await role.leave_out("b")
        # Nothing was begun, or all is stored: the counter is raised once.
        counter = 2 if answered == (step == 2) else 3
        assert side.figures == (counter, counter, counter, ("a",)) and len(side.complaints) == 1


async def test_a_counter_that_the_disk_does_not_take_ends_the_change_and_whoever_can_begins_anew() -> None:
    async with served() as (side, role):
        side.fails = 1
        assert not await role.leave_out("b")
        assert side.figures == (1, 2, 1, ("a", "b")) and [str(one) for one in side.complaints] == ["the disk"]
        await role.release()
        record = await role.claim(activation=1, epoch=1)
        assert isinstance(record, QuorumRecord) and side.figures == (3, 3, 3, ("a",))


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_change_is_given_up_after_a_lease_and_the_patience_of_the_node_while_the_lock_is_held(
    hangs: bool,
) -> None:
    async with served() as (_side, role):

        async def read() -> QuorumRecord:
            if hangs:
                await trio.sleep_forever()
            raise RemoteProtocolError("another record")

        role._open.read = read  # type: ignore[method-assign]
        began = trio.current_time()
        assert not await role.leave_out("b")
        assert PATIENCE_S <= trio.current_time() - began <= PATIENCE_S + LEASE_S + 0.2
        assert role.until > trio.current_time()


@pytest.mark.parametrize("call", ["read", "compare_and_set"])
@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("x"), ExceptionGroup("x", [KeyError("x")]), SettingsError("session", 1, "x")]
)
async def test_any_error_of_a_provider_is_one_of_a_quorum_that_can_not_be_asked_now(
    call: str, error: Exception
) -> None:
    async with served() as (side, role):
        # Below what makes the errors those of the contract.
        session = role._open._session  # type: ignore[attr-defined]
        real, fails = getattr(session, call), True

        async def fail(*about: QuorumRecord) -> object:
            nonlocal fails
            if fails:
                fails = False
                raise error
            return await real(*about)

        setattr(session, call, fail)
        assert await role.leave_out("b")
        assert side.figures == (2, 2, 2, ("a",)) and len(side.complaints) == 1
        assert isinstance(side.complaints[0], SettingsError | ConnectionBrokenError)


@pytest.mark.parametrize("call", ["release", "lost"])
async def test_an_error_at_the_end_of_a_role_is_told_and_the_node_takes_part_again(call: str) -> None:
    async with trio.open_nursery() as nursery, served() as (side, role):
        session = role._open._session  # type: ignore[attr-defined]

        async def fail() -> None:
            raise OSError("x")

        setattr(session, call, fail)
        await role.lost() if call == "lost" else await role.release()
        # The part for another node id is another one, although the one before ends with an error.
        await role.open(nursery, b"o" * 16)
        assert await role.acquire() and side.complaints
        nursery.cancel_scope.cancel()


async def test_without_the_quorum_a_replica_is_neither_added_nor_left_out_and_the_lock_ends() -> None:
    async with served() as (side, role):
        side.quorum.cut(b"a")
        began = trio.current_time()
        assert not await role.leave_out("b")
        assert not await role.add("c")
        assert role.may_count("b") and role.may_count("c") and not role.counts("c")
        assert role.until == 0.0 and trio.current_time() - began <= LEASE_S + 0.2
        assert side.figures == (1, 1, 1, ("a", "b"))
        await role.lost()


async def test_an_add_in_doubt_is_left_out_like_a_replica() -> None:
    async with served() as (side, role):
        assert await role.leave_out("b")
        session = role._open
        real = session.compare_and_set

        async def lose(expected: QuorumRecord, new: QuorumRecord) -> bool:
            await real(expected, new)
            side.quorum.cut(b"a")
            raise ConnectionBrokenError("the answer is lost", outcome="unknown")

        session.compare_and_set = lose  # type: ignore[method-assign]
        with trio.move_on_after(0.3):
            await role.add("b")
        session.compare_and_set = real  # type: ignore[method-assign]
        assert role.may_count("b") and not role.counts("b")
        side.quorum.heal(b"a")
        assert await role.leave_out("b")
        assert side.figures == (3, 3, 3, ("a",)) and not role.may_count("b")


async def test_a_role_that_is_given_up_changes_nothing_any_more_and_another_node_has_it_at_once() -> None:
    async with served() as (side, role):
        role.close()
        assert role.until == 0.0 and not await role.leave_out("b")
        await role.release()
        other = Side("b", side.quorum, counter=1)
        async with trio.open_nursery() as nursery:
            second = other.role()
            await second.open(nursery, ID)
            assert await second.acquire()
            record = await second.claim(activation=1, epoch=1)
            assert isinstance(record, QuorumRecord) and (record.epoch, record.in_sync) == (2, ("b",))
            assert not await role.leave_out("b") and not await role.add("c")
            nursery.cancel_scope.cancel()
        with pytest.raises(RefusedError):
            await second.acquire()


async def test_a_record_that_another_node_has_ends_a_change() -> None:
    async with served() as (side, role):
        side.quorum.place(ID).record = attrs.evolve(side.quorum.record(ID), epoch=7, holder="b")
        assert not await role.leave_out("b") and not await role.add("c")


def test_a_replica_that_was_being_left_out_is_left_out_with_a_counter_that_no_disk_has() -> None:
    record = QuorumRecord(epoch=3, sequence=4, claimed=5, in_sync=("a", "b"), holder="a")
    steps = without_replica(record, "b")
    assert steps.begun == attrs.evolve(record, claimed=6) and steps.activation == 6
    assert steps.done == QuorumRecord(epoch=3, sequence=6, claimed=6, in_sync=("a",), holder="a")
    # Whoever is in sync, with the one counter or the other, may claim instead.
    for name, activation in (("a", 5), ("a", 4), ("b", 4)):
        claim = decide_claim(record, name=name, activation=activation, epoch=3)
        assert not isinstance(claim, NoClaim) and claim.activation == 6 and claim.done.in_sync == (name,)


def test_a_node_that_knows_of_a_later_epoch_than_the_quorum_does_not_claim() -> None:
    record = QuorumRecord(epoch=3, sequence=4, claimed=4, in_sync=("a",), holder="a")
    refused = decide_claim(record, name="a", activation=4, epoch=4)
    assert isinstance(refused, NoClaim) and refused.reason == "unknown" and "epoch 4" in refused.text
    assert not isinstance(decide_claim(record, name="a", activation=4, epoch=3), NoClaim)


async def test_a_lock_that_a_slow_disk_holds_up_is_given_back_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as (side, role), trio.open_nursery() as nursery:

        async def slow(counter: int) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

        monkeypatch.setattr(role, "_store", slow)
        answers: list[bool] = []

        async def leave_out() -> None:
            answers.append(await role.leave_out("b"))

        nursery.start_soon(leave_out)
        await trio.sleep(0.5)
        began = trio.current_time()
        await role.release()
        # It waits no longer than that, and does not act any more.
        assert trio.current_time() - began < 3 and (role.record, role.until) == (None, 0.0)
        other = Side("c", side.quorum).role()
        await other.open(nursery, ID)
        assert not await other.acquire()
        await trio.sleep(2)
        assert (answers, role.record) == ([False], None)
        assert await other.acquire()
        nursery.cancel_scope.cancel()
