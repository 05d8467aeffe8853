"""What a node of a pair knows of its voters, and what it notes of a change: without brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import attrs
import pytest
import trio

from meshq import MajorityVote
from meshq.ha.replication._pair_votes import PairVotes
from meshq.ha.replication._replicator_machine import ReplicationBounds
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication._term import ReplicationTerm
from meshq.ha.votes._polling import KnownVoters
from meshq.wire import Replicate

WANTED = Replicate(instance=b"i" * 16, node_name="b", place="tcp://b:1")


def voter(number: int, name: str) -> str:
    """Make the id and URL of a voter."""
    return f"{number:032x}tcp://{name}:1"


class Others:
    """The nodes of the cluster, and the voters that answer; a pollster and a way to them in one."""

    def __init__(self, *voters: str, number: int = 0) -> None:
        self.policy = MajorityVote()
        self.lives = tuple(one[32:] for one in voters)
        self.voters = voters
        self.number = number
        self.asked: list[str] = []

    def voting(self, host: str) -> tuple[str, ...]:
        """All that are there."""
        return self.lives

    async def who(self, urls: Iterable[str]) -> KnownVoters:
        """Answer."""
        self.asked = sorted(urls)
        await trio.lowlevel.checkpoint()
        found = tuple(one for one in self.voters if one[32:] in self.asked)
        return KnownVoters(voters=found, number=self.number if found else 0)


class Node:
    """The memory of a node, and its votes."""

    def __init__(self, others: Others, standing: Standing) -> None:
        self.name = "a"
        self.standing = standing
        #: The memories that were stored.
        self.stored: list[Standing] = []
        about: dict[str, Any] = {"show": lambda text: None, "stays": False}
        pollster = reach = cast("Any", others)
        self.votes = PairVotes(
            pollster, cast("Any", self), reach, standing=lambda: self.standing, change=self._change, **about
        )

    async def _change(self, change: Callable[[Standing], Standing]) -> bool:
        await trio.lowlevel.checkpoint()
        self.standing = change(self.standing)
        self.stored.append(self.standing)
        return True


async def test_a_replica_that_comes_again_is_enrolled_among_voters_that_have_lost_their_files() -> None:
    node = Node(Others(voter(9, "c"), voter(2, "d")), Standing(number=4, voters=(voter(1, "c"), voter(2, "d"))))
    assert await node.votes.enroll(WANTED, lambda: True)
    assert node.standing.voters == (voter(2, "d"), voter(9, "c"))
    assert (node.standing.number, node.standing.members, node.standing.replica) == (5, ("a", "b"), "69" * 16)


async def test_a_node_that_was_claimed_knows_no_voters_of_before() -> None:
    before = Standing(number=4, voters=(voter(1, "c"), voter(2, "d")), later=(voter(1, "c"),))
    node = Node(Others(voter(3, "e")), attrs.evolve(before, claimed=True).unclaimed)
    assert await node.votes.enroll(WANTED, lambda: True)
    assert node.standing.voters == (voter(3, "e"),)
    assert node.standing.number > 1000


class Follows:
    """A replica that is in sync."""

    def __init__(self) -> None:
        self.wanted = WANTED
        self.ended = False
        self.said: list[Any] = []

    def end(self, reason: str) -> None:
        """Note the end."""
        self.ended = True

    def say_voters(self, time: int, voters: tuple[str, ...]) -> None:
        """Note what is said."""
        self.said.append(voters)
        self.ended = True


async def test_the_number_is_above_that_of_voters_who_are_not_found_by_the_cluster_yet() -> None:
    others = Others(voter(1, "c"), number=10)
    others.lives = ()
    node = Node(others, Standing(number=4, voters=(voter(1, "c"),)))
    assert await node.votes.enroll(WANTED, lambda: True)
    assert (node.standing.number, node.standing.voters, others.asked) == (11, (voter(1, "c"),), ["tcp://c:1"])


@pytest.mark.parametrize(("number", "dropped"), [(3, False), (4, False), (5, True)])
async def test_a_replica_is_enrolled_again_where_voters_have_voted_for_later_changes(
    number: int, dropped: bool
) -> None:
    node = Node(Others(voter(1, "c"), number=number), Standing(number=4))
    feeder: Any = Follows()
    await node.votes.look(feeder, ReplicationTerm(1, ReplicationBounds(sync_s=1, slow_s=1)))
    assert (feeder.said == [], node.stored == []) == (dropped, dropped)


async def test_a_replica_that_was_in_sync_before_there_were_voters_is_known_by_its_life() -> None:
    node = Node(Others(voter(1, "c")), Standing(number=4))
    feeder: Any = Follows()
    await node.votes.look(feeder, ReplicationTerm(1, ReplicationBounds(sync_s=1, slow_s=1)))
    assert (node.standing.members, node.standing.replica) == (("a", "b"), "69" * 16)


async def test_a_replica_that_was_lost_meanwhile_is_not_enrolled_and_leaves_a_later_one_in() -> None:
    node = Node(Others(voter(1, "c")), Standing(number=4, members=("a",)))
    assert not await node.votes.enroll(WANTED, lambda: False)
    assert node.standing == Standing(number=4, members=("a",))
    first = await node.votes.enroll(WANTED, lambda: True)
    later = await node.votes.enroll(WANTED, lambda: True)
    assert await node.votes.leave_out(first)
    assert (node.standing.number, node.standing.members) == (later, ("a", "b"))
    assert await node.votes.leave_out(later)
    assert (node.standing.number, node.standing.members) == (later + 1, ("a",))
