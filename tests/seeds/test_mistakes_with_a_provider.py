"""The simulation of a pair that asks a quorum finds what it is there to find: each mistake breaks a promise."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import trio

from meshq.abc import QuorumRecord
from meshq.ha.quorum import Claim, NoClaim, _claim, _claim_plan
from meshq.ha.quorum._claim_plan import _claim as steps_of
from meshq.ha.replication import _quorum_role
from meshq.ha.replication._quorum_role import QuorumRole
from qa.ha.provided import run_provided_pair_seed
from tests.seeds.finding import find_mistake

SEEDS = 30
TIMEOUT_S = 1_800


def acts_after_the_end_of_the_lock(patch: pytest.MonkeyPatch) -> None:
    """A node goes on with a lock that it had once."""

    async def never(role: QuorumRole) -> None:
        await trio.sleep_forever()

    patch.setattr(QuorumRole, "until", property(lambda role: math.inf))
    patch.setattr(QuorumRole, "lost", never)


def serves_with_an_older_counter(patch: pytest.MonkeyPatch) -> None:
    """Whoever gets the lock serves, with whatever copy it has."""

    def decide(record: QuorumRecord, *, name: str, **about: int | None) -> Claim | NoClaim:
        return steps_of(record, name)

    patch.setattr(_claim, "decide_claim", decide)
    patch.setattr(_quorum_role, "decide_claim", decide)


def goes_on_alone_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """A replica that is dropped stays in the record, with the same counter."""

    async def done(role: QuorumRole, name: str) -> bool:
        return True

    patch.setattr(QuorumRole, "leave_out", done)


def completes_a_claim_with_its_counter(patch: pytest.MonkeyPatch) -> None:
    """A claim that was interrupted is completed with the counter that it has named, which may be on another disk."""
    real = _claim_plan._steps

    def steps(record: QuorumRecord, done: QuorumRecord, *, counter: int) -> Claim:
        return real(record, done, counter=max(record.sequence + 1, counter - 1))

    patch.setattr(_claim_plan, "_steps", steps)


def renews_seldom(patch: pytest.MonkeyPatch) -> None:
    """A renewal is sent each third of a lease, so that a pause just below it costs the role, by chance."""
    patch.setattr("meshq.testing._quorum.RENEWALS", 3)


MISTAKES = (
    renews_seldom,
    acts_after_the_end_of_the_lock,
    serves_with_an_older_counter,
    goes_on_alone_without_a_word,
    completes_a_claim_with_its_counter,
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_provided_pair_seed, SEEDS, ("H1", "H2", "H3", "H4", "H5", "H7"))
