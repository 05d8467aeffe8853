"""A witness that has lost its journal is nobody's witness any more, and what a witness keeps has bounds."""

from __future__ import annotations

import logging
from collections.abc import Generator

import attrs
import pytest
import trio

from meshq import ConnectionBrokenError, RefusedError, UsageError
from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh._lock_machine import Answers, Ask, Lock
from meshq.ha.quorum.mesh._witness_machine import NODE_IDS_MAX, Question, Reply, VoterState, Witness, name_of
from meshq.testing import SimDisk
from tests.ha.quorum.ensemble import Ensemble, ensemble

ID = b"i" * 16
A, B = b"a" * 16, b"b" * 16
FIRST = QuorumRecord(epoch=1, holder="a")


async def lose_journal(world: Ensemble, name: str) -> None:
    await world.stop(name)
    world.disks[name] = SimDisk()
    await world.start(name)
    # Sessions connect again.
    await trio.sleep(0.5)


async def test_a_witness_that_has_lost_its_journal_gives_no_lock_away_that_is_held(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ensemble() as world:
        one, other = world.quorum().session(ID, A), world.quorum("c1").session(ID, B)
        async with one as first, other as second:
            assert await first.acquire()
            # The holder reaches one witness only, and the other two are all that the second one reaches.
            world.network.partition(["c0", "w0"], ["c1", "w1", "w2"])
            await lose_journal(world, "w1")
            began = trio.current_time()
            with caplog.at_level(logging.WARNING, logger="meshq.quorum"):
                for _ in range(3):
                    with pytest.raises(ConnectionBrokenError, match=r"w1/[0-9a-f]{8} began with an empty journal"):
                        await second.acquire()
            assert trio.current_time() - began < 60.0
    told = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "witness_forgot"]
    assert len(told) == 1 and "begin with a new ensemble" in told[0]


async def test_two_of_three_go_on_when_the_third_one_has_lost_its_journal_and_the_record_is_whole() -> None:
    async with ensemble() as world:
        async with world.quorum().session(ID, A) as first:
            assert await first.acquire()
            assert await first.compare_and_set(QuorumRecord(), FIRST)
            await lose_journal(world, "w1")
            assert await first.compare_and_set(FIRST, attrs.evolve(FIRST, epoch=2))
        async with world.quorum("c1").session(ID, B) as second:
            assert await second.read() == attrs.evolve(FIRST, epoch=2)
            assert await second.acquire()
            await world.stop("w2")
        async with world.quorum("c2").session(ID, A) as third:
            with pytest.raises(ConnectionBrokenError, match=r"1 of 3 witnesses have agreed, and 2 are needed: w1/"):
                await third.read()


async def test_a_new_node_id_belongs_to_the_witness_with_its_new_journal() -> None:
    async with ensemble() as world:
        await lose_journal(world, "w1")
        async with world.quorum().session(ID, A) as session:
            assert await session.acquire()


def test_an_older_record_is_not_read_from_one_witness_and_one_that_has_forgotten() -> None:
    members = ("w0/00", "w1/00", "w2/00")
    lock = Lock(ID, A, size=3, session_s=3.0, share=0.3)
    steps = lock.read(held=False)
    newest = VoterState(ballot=2, servers=members, kept=(2, 1), record=FIRST)
    replies = {"w0/00": attrs.evolve(newest, kept=(0, 0), record=QuorumRecord()), "w1/01": VoterState()}
    ask = next(steps)
    assert ask.wanted == 2
    ask = steps.send(answered(replies))
    assert ask.wanted == 3
    assert outcome(steps, answered(replies | {"w2/00": newest})) == FIRST
    assert lock.forgetful == {"w1/01"}


def answered(promises: dict[str, VoterState]) -> Answers:
    return Answers(0.0, {name: Reply(granted=True, reason="", promise=one) for name, one in promises.items()})


def outcome(steps: Generator[Ask, Answers, QuorumRecord], answers: Answers) -> object:
    with pytest.raises(StopIteration) as end:
        steps.send(answers)
    return end.value.value


def test_a_witness_promises_nothing_for_a_set_that_it_does_not_belong_to() -> None:
    witness = Witness("w0/01")
    claim = Question(kind="claim", node_id=ID, instance=A, ballot=1, session_s=3.0, servers=("w0/00", "w1/00"))
    assert witness.answer(claim, 0.0) == (Reply(granted=False, reason="servers", promise=VoterState()), False)
    assert [name_of(member) for member in (witness.member, "a/b/00")] == ["w0", "a/b"]


def test_a_witness_knows_so_many_node_ids_and_no_more() -> None:
    witness = Witness("w0/00")
    claim = Question(kind="claim", node_id=ID, instance=A, ballot=1, session_s=3.0, servers=("w0/00",))
    for number in range(NODE_IDS_MAX):
        assert witness.answer(attrs.evolve(claim, node_id=number.to_bytes(16, "big")), 0.0)[0].granted
    reply, changed = witness.answer(claim, 0.0)
    assert (reply.reason, changed, len(witness.promises)) == ("full", False, NODE_IDS_MAX)
    # Those that it knows go on.
    again = attrs.evolve(claim, node_id=bytes(16), ballot=2)
    assert witness.answer(again, 9.0)[0].granted
    steps = Lock(ID, A, size=1, session_s=3.0, share=0.3).acquire()
    next(steps)
    for _ in range(2):
        steps.send(answered({"w0/00": VoterState()}))
    full = Answers(0.0, {"w0/00": reply})
    with pytest.raises(RefusedError, match="w0/00: no more than 10,000 node ids"):
        steps.send(full)
        steps.send(full)


async def test_a_record_that_is_too_large_is_refused_before_it_is_sent_and_the_next_one_is_kept() -> None:
    async with ensemble() as world, world.quorum().session(ID, A) as session:
        assert await session.acquire()
        with pytest.raises(UsageError, match="is larger than a quorum keeps: 8192"):
            await session.compare_and_set(QuorumRecord(), QuorumRecord(holder="h" * 9_000))
        assert await session.read() == QuorumRecord()
        assert await session.compare_and_set(QuorumRecord(), FIRST)
        assert session.held_until > trio.current_time()
