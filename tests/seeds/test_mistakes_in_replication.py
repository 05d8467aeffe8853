"""The simulation of a pair by replication finds what it is there to find: each of these mistakes breaks a promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.ha.replication._feeder import Feeder
from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._pair_activation import ReplicationActivation
from meshq.ha.replication._replica_machine import Following
from meshq.wire import Log
from qa.ha.replicated import run_replicated_pair_seed
from tests.seeds.finding import find_mistake

SEEDS = 30
TIMEOUT_S = 1_800


def drops_the_tail_of_the_catch_up(patch: pytest.MonkeyPatch) -> None:
    """What was placed while the copy was made is not sent, and nobody looks for a gap."""

    async def nothing(feeder: Feeder, position: int, upto: int) -> int:
        return upto

    patch.setattr(Feeder, "_send_tail", nothing)


def promotes_who_is_not_in_sync(patch: pytest.MonkeyPatch) -> None:
    """Whoever has begun to follow takes over when the link ends."""
    patch.setattr(
        Following, "may_take_over", lambda following, durable, last: following.state not in ("asking", "copying")
    )


def believe_a_link_that_has_ended(patch: pytest.MonkeyPatch) -> None:
    """A replica takes over without asking whether its primary lives, be it that it was dropped, and a primary goes on
    without asking whether its replica has taken over.

    One of the two questions is enough while both nodes run.
    """

    async def gone(activation: object, url: str, node: object) -> bool:
        return True

    async def dropped(follower: object, header: object, first: int, body: bytes) -> None:
        return

    patch.setattr(ReplicationActivation, "_is_gone", gone)
    patch.setattr("meshq.ha.replication._follower.Follower._take_dropped", dropped)
    patch.setattr("meshq.ha.replication._follower.Follower.give_in", lambda follower: None)
    whose = "meshq.ha.replication._acting_side.ActingSide._may_have_taken_over"
    patch.setattr(whose, lambda acting, feeder, term: False)


def says_that_it_waits_while_it_may_take_over(patch: pytest.MonkeyPatch) -> None:
    """A node that comes back is told by the one in sync that nobody is about to serve."""
    patch.setattr("meshq.ha.replication._acting_side.busy", lambda **who: Log(kind="waiting", **who))


def sends_no_large_body(patch: pytest.MonkeyPatch) -> None:
    """The files of large bodies stay at the primary."""

    async def nothing(feeder: Feeder, name: str) -> None:
        return

    patch.setattr(Feeder, "_send_body", nothing)


def remembers_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """A node forgets in which epoch it has served."""
    patch.setattr(NodeDirectory, "remember", lambda directory, standing: None)


MISTAKES = (
    drops_the_tail_of_the_catch_up,
    promotes_who_is_not_in_sync,
    believe_a_link_that_has_ended,
    says_that_it_waits_while_it_may_take_over,
    sends_no_large_body,
    remembers_no_epoch,
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    find_mistake(run_replicated_pair_seed, SEEDS, ("H1", "H2", "H3", "H4"))
