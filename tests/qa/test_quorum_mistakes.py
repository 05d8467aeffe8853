"""The simulation of a quorum finds mistakes that are put into its deciders."""

from __future__ import annotations

import attrs
import pytest

from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh._lock_machine import Answers, Ask, Lock, Steps
from meshq.ha.quorum.mesh._witness_machine import Question, Reason, VoterState, Witness
from qa.quorum.schedule import run_schedule

pytestmark = pytest.mark.seeded_bugs
SCHEDULES = 100


class FreeAfterARestart(Witness):
    """A promise ends with a restart."""

    def recover(self, node_id: bytes, promise: VoterState, now: float) -> None:
        super().recover(node_id, promise, now - promise.session_s)


class ForgetsThePromise(Witness):
    """A restart forgets what was promised, and keeps the record."""

    def recover(self, node_id: bytes, promise: VoterState, now: float) -> None:
        super().recover(node_id, VoterState(servers=promise.servers, kept=promise.kept, record=promise.record), now)


class GivesToEverybody(Witness):
    """A lock that is held is given to the next one."""

    def held(self, node_id: bytes, now: float) -> bool:
        return False


class PromisesABallotTwice(Witness):
    """A ballot that was promised is promised again."""

    def _claim(self, question: Question, promise: VoterState, now: float) -> tuple[VoterState, Reason]:
        if question.ballot == promise.ballot:
            promise = attrs.evolve(promise, ballot=question.ballot - 1)
        return super()._claim(question, promise, now)


class KeepsForOldBallots(Witness):
    """A record is kept under a ballot that has a successor."""

    def _store(self, question: Question, promise: VoterState) -> tuple[VoterState, Reason]:
        return attrs.evolve(promise, kept=(question.ballot, question.number), record=question.record), ""


class MixesSessions(Witness):
    """Two sessions with one ballot are taken for one."""

    @staticmethod
    def _has(promise: VoterState, question: Question) -> bool:
        return promise.ballot == question.ballot > 0


class VotesWithoutItsJournal(Witness):
    """A witness that has lost its journal votes as the one that it was."""

    def _claim(self, question: Question, promise: VoterState, now: float) -> tuple[VoterState, Reason]:
        self.member = question.servers[0]
        return super()._claim(question, promise, now)


class CountsFromTheAnswer(Lock):
    """The lease is counted from the answer, not from the question."""

    def renew(self) -> Steps[float]:
        until = yield from super().renew()
        return until + 2.0 if until else until


class OneIsEnough(Lock):
    """The promise of one witness is a lock."""

    def acquire(self) -> Steps[float]:
        self._majority = 1
        return (yield from super().acquire())


class TakesTheFirstRecord(Lock):
    """A record that others have kept is not looked for in all answers."""

    def acquire(self) -> Steps[float]:
        steps = super().acquire()
        sent: Answers | None = None
        while True:
            try:
                ask: Ask = next(steps) if sent is None else steps.send(sent)
            except StopIteration as end:
                value: float = end.value
                return value
            if ask.question.kind == "store":
                ask = Ask(attrs.evolve(ask.question, record=QuorumRecord()), ask.wanted)
                self._record = QuorumRecord()
            sent = yield ask


class UsesABallotAgain(Lock):
    """A ballot that was not heard of is used for the next try."""

    def acquire(self) -> Steps[float]:
        before = self._highest
        until = yield from super().acquire()
        if not until:
            self._highest = before
        return until


WITNESSES = [
    FreeAfterARestart,
    ForgetsThePromise,
    GivesToEverybody,
    PromisesABallotTwice,
    KeepsForOldBallots,
    MixesSessions,
    VotesWithoutItsJournal,
]


#: What takes many schedules to show is looked for where it shows.
FIRST = {FreeAfterARestart: 450, VotesWithoutItsJournal: 150, UsesABallotAgain: 1_500}


def found(witness: type[Witness], lock: type[Lock]) -> str:
    first = FIRST.get(witness, 0) or FIRST.get(lock, 0)
    for seed in range(first, first + SCHEDULES):
        history = run_schedule(seed, witness=witness, lock=lock)
        if history.problems:
            return history.problems[0][:2]
    return ""


@pytest.mark.parametrize("witness", WITNESSES)
def test_a_mistake_of_a_witness_is_found(witness: type[Witness]) -> None:
    assert found(witness, Lock)


@pytest.mark.parametrize("lock", [CountsFromTheAnswer, OneIsEnough, TakesTheFirstRecord, UsesABallotAgain])
def test_a_mistake_of_a_session_is_found(lock: type[Lock]) -> None:
    assert found(Witness, lock)
