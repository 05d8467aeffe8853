"""The simulation of a pair with voters finds what it is there to find: each of these mistakes breaks a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from meshq.ha.replication._acting_side import ActingSide
from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.replication.meeting import _own_words
from meshq.ha.votes import Ballot, BallotBox, Count, GivenVote
from meshq.wire import Log
from qa.ha.voted import VotedStage, run_voted_pair_seed
from tests.seeds.finding import find_mistake

SEEDS = 30
TIMEOUT_S = 1_800


def votes_twice(patch: pytest.MonkeyPatch) -> None:
    """A voter says yes to both nodes that ask for the same change."""

    def judge(box: BallotBox, ballot: Ballot) -> GivenVote | None:
        return GivenVote(number=ballot.number, holder=ballot.holder, vote=ballot.vote)

    patch.setattr(BallotBox, "judge", judge)


def counts_a_no_as_a_yes(patch: pytest.MonkeyPatch) -> None:
    """Whoever answers at all has agreed."""
    add = Count.add
    patch.setattr(Count, "add", lambda count, voter, yes, holder="": add(count, voter, yes or bool(holder)))


def goes_on_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A primary that has lost its replica confirms alone at once."""

    async def alone(side: ActingSide, votes: object, feeder: Feeder, term: ReplicationTerm, reason: str) -> None:
        side._conclude(feeder, term, drop=reason)

    patch.setattr(ActingSide, "_settle_by_votes", alone)


def hides_that_it_has_handed_over(patch: pytest.MonkeyPatch) -> None:
    """A backup that has scaled down says that it waits as before, so that its primary serves its old store."""
    real = _own_words.waiting

    def waits(standing: Standing, *, primary: bool, **who: Any) -> Log:
        if standing.acted and not primary:
            standing = attrs.evolve(standing, epoch=standing.epoch - 1, acted=False)
        return real(standing, primary=primary, **who)

    patch.setattr(VotedStage, "leaving", 1.0)
    patch.setattr("meshq.ha.replication._acting_side.waiting", waits)


MISTAKES = (votes_twice, counts_a_no_as_a_yes, goes_on_without_asking, hides_that_it_has_handed_over)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_voted_pair_seed, SEEDS, ("H1", "H2", "H3", "H4"))
