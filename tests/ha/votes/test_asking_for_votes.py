"""A node asks others for votes, and others give them: what is cut, what is given back, and what is on the disk."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from meshq import MajorityVote
from meshq.abc import Env, ReplicaLine
from meshq.client import LogPiece
from meshq.env import real_env
from meshq.errors import ConnectionBrokenError
from meshq.ha.votes import Pollster, Voter, Voters, elected
from meshq.testing import InlineThreads, SimDisk
from meshq.wire import Log, Logged, Replicate

NODE = b"n" * 16


class Links:
    """Links to voters, each of which says yes, says no, is silent or is not there."""

    def __init__(self, **says: str) -> None:
        self.says = says
        self.given_back: list[str] = []
        self.asked: list[Replicate] = []

    @property
    def voters(self) -> Voters:
        """All of them."""
        return Voters(tuple(f"{name.encode().hex():0>32}{name}" for name in self.says))

    def factory(self, url: str) -> Any:
        """Make a factory of links."""
        return Linked(self, url)


@attrs.define
class Linked:
    """A link to one voter."""

    links: Links
    name: str

    def log_link(self, wanted: Replicate, *, instance: bytes) -> Linked:
        """Return itself."""
        self.links.asked.append(wanted)
        return self

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Do nothing."""
        if self.links.says[self.name] == "gone":
            raise ConnectionBrokenError("nobody is there", outcome="not_done")
        yield

    async def receive(self) -> LogPiece:
        """Answer."""
        says = self.links.says[self.name]
        if says == "silent":
            await trio.sleep_forever()
        box = b"another one" if says == "other" else self.name.encode()
        header = Log(
            kind="vote",
            instance=box.rjust(16, b"\0"),
            flags=1 if says in ("yes", "other") else 0,
            number=2 if says == "old" else 3,
            name={"no": "b", "old": "b", "own": "a"}.get(says, ""),
        )
        return LogPiece(header=header, first=0, body=b"")

    def tell(self, answer: Logged, first: int = 0) -> None:
        """Note a vote that is given back."""
        assert answer.kind == "withdraw"
        self.links.given_back.append(self.name)


def pollster(links: Links, policy: MajorityVote | None = None) -> Pollster:
    """Make who asks."""
    wanted = Replicate(instance=b"i" * 16, node_name="a", node_id=NODE)
    return Pollster(links.factory, lambda: wanted, real_env().entropy, policy or MajorityVote())


async def test_a_vote_is_cut_after_thirty_seconds_and_what_was_given_is_given_back() -> None:
    links = Links(p="yes", q="silent", r="silent")
    began = trio.current_time()
    poll = await pollster(links).hold(3, links.voters)
    assert 30 <= trio.current_time() - began <= 31
    assert (poll.granted, poll.count.yes, links.given_back) == (False, 1, ["p"])
    assert {(one.votes, one.number, len(one.vote), one.node_name) for one in links.asked} == {(True, 3, 16, "a")}


async def test_a_vote_that_is_won_ends_at_once_and_gives_nothing_back() -> None:
    links = Links(p="yes", q="yes", r="silent")
    began = trio.current_time()
    poll = await pollster(links).hold(3, links.voters)
    await trio.testing.wait_all_tasks_blocked()
    assert (poll.granted, trio.current_time() - began, links.given_back) == (True, 0, [])


async def test_who_is_not_there_and_who_has_lost_its_memory_has_not_voted() -> None:
    links = Links(p="yes", q="gone", r="other")
    began = trio.current_time()
    poll = await pollster(links).hold(3, links.voters)
    assert (poll.granted, sorted(links.given_back)) == (False, ["p", "r"])
    # An answer that comes after the decision is not counted.
    assert poll.count.yes <= 1
    assert trio.current_time() - began < 2
    lost = Links(p="no", q="no", r="yes")
    assert (await pollster(lost).hold(3, lost.voters)).lost_to("b")
    # Those that have voted for the change before this one have not voted against it.
    lost = Links(p="old", q="old", r="yes")
    assert not (await pollster(lost).hold(3, lost.voters)).lost_to("b")


async def test_a_change_that_is_made_is_told_without_taking_a_vote_back() -> None:
    links = Links(p="yes", q="gone", r="no")
    assert not (await pollster(links).hold(3, links.voters, made=True)).granted
    assert links.given_back == []
    # A voter that knows of it already, or of a later one, was told.
    links = Links(p="yes", q="gone", r="own")
    assert (await pollster(links).hold(3, links.voters, made=True)).granted
    assert not (await pollster(links).hold(3, links.voters)).granted


async def test_voters_say_who_they_are_and_the_silent_ones_are_waited_for_three_seconds() -> None:
    links = Links(p="no", q="silent", r="gone")
    began = trio.current_time()
    found = await pollster(links).who(["p", "q", "r"])
    assert (found.voters, found.number) == (links.voters.now[:1], 3)
    assert (await pollster(links).who([])).number == 0
    assert trio.current_time() - began == 3
    assert [one.vote for one in links.asked] == [b""] * 3


async def test_thirteen_votes_are_held_the_first_one_at_once_and_each_five_seconds_after_the_one_before() -> None:
    """K75: with the defaults, in virtual time."""
    times: list[float] = []

    async def hold() -> bool:
        times.append(trio.current_time())
        await trio.sleep(30)
        return False

    async def until(moment: float) -> bool:
        await trio.sleep_until(moment)
        return True

    began = trio.current_time()
    assert not await elected(MajorityVote(), hold, until)
    assert [round(moment - began) for moment in times] == [35 * number for number in range(13)]
    assert not await elected(MajorityVote(vote_retries=0), hold, until)
    assert len(times) == 14


async def test_no_vote_is_held_once_none_is_needed_and_none_after_one_that_was_won() -> None:
    answers = iter([False, False, True])

    async def hold() -> bool:
        return next(answers)

    async def until(moment: float) -> bool:
        await trio.sleep_until(moment)
        return True

    async def never(moment: float) -> bool:
        return False

    assert await elected(MajorityVote(), hold, until)
    assert not await elected(MajorityVote(), hold, never)


# -- who votes


class Line(ReplicaLine[Log]):
    """Notes what is said."""

    def __init__(self) -> None:
        self.said: list[Log] = []
        self.ended = False

    def send(self, piece: Log, first: int = 0, body: bytes = b"") -> None:
        """Note a piece."""
        self.said.append(piece)

    def flush(self) -> int:
        """Do nothing."""
        return 0

    def end(self, text: str) -> None:
        """Note the end."""
        self.ended = True


def env(disk: SimDisk) -> Env:
    """Make the outside of a voter."""
    return attrs.evolve(real_env(), disk=disk.mount(), threads=InlineThreads())


async def ask(voter: Voter, holder: str, number: int = 2, *, back: bool = False) -> Line:
    """Ask once; by choice the vote is not needed then."""
    line = Line()
    wanted = Replicate(instance=b"i" * 16, node_name=holder, node_id=NODE, votes=True, number=number, vote=b"1")
    end = voter.follow(wanted, cast("Any", line), "peer")
    await trio.testing.wait_all_tasks_blocked()
    if back:
        end.heard(Logged(kind="withdraw"), 0)
        await trio.testing.wait_all_tasks_blocked()
    return line


async def test_a_voter_remembers_its_vote_in_its_next_life_and_after_the_loss_of_power() -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        before = Voter("v", "/data", env(disk), nursery)
        first = await ask(before, "a")
        assert [(one.kind, one.flags, one.name) for one in first.said] == [("vote", 1, "a")]
        before.close()
        disk.power_loss(random.Random(1))
        again = Voter("v", "/data", env(disk), nursery)
        second = await ask(again, "b")
        assert [(one.flags, one.number, one.name) for one in second.said] == [(0, 2, "a")]
        assert second.said[0].instance == first.said[0].instance
        # Another node of the same directory, and one without, are other voters.
        for other in (Voter("w", "/data", env(disk), nursery), Voter("v", None, env(disk), nursery)):
            assert (await ask(other, "b")).said[0].instance != first.said[0].instance
        await ask(again, "a", back=True)
        assert (await ask(again, "b")).said[0].flags == 1


async def test_of_two_nodes_with_one_name_and_one_directory_one_votes_at_a_time_and_the_other_knows_its_votes() -> None:
    """A backup that shares a store with its primary votes while it waits, too."""
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        primary, backup = Voter("v", "/data", env(disk), nursery), Voter("v", "/data", env(disk), nursery)
        assert (await ask(primary, "a", 1)).said[0].flags == 1
        refused = await ask(backup, "b", 2)
        assert (refused.said, refused.ended) == ([], True)
        assert (await ask(primary, "a", 2)).said[0].flags == 1
        primary.close()
        later = await ask(backup, "b", 2)
        assert [(one.flags, one.number, one.name) for one in later.said] == [(0, 2, "a")]


async def test_a_voter_without_a_directory_warns_that_its_votes_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with trio.open_nursery() as nursery:
        for root in (None, "/data"):
            voter = Voter("v", root, env(SimDisk()), nursery)
            await ask(voter, "a", 1)
            await ask(voter, "a", 2)
    assert [getattr(one, "event", "") for one in caplog.records] == ["votes_in_memory"]


async def test_a_vote_that_can_not_be_stored_is_not_given() -> None:
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        voter = Voter("v", "/data", env(disk), nursery)
        await ask(voter, "a", 1)
        disk.faults.inject("sync")
        assert (await ask(voter, "a", 2)).said[0].flags == 0
        assert (await ask(voter, "b", 2)).said[0].flags == 1
        other = SimDisk()
        other.faults.inject("sync")
        line = await ask(Voter("v", "/data", env(other), nursery), "a")
        assert (line.said, line.ended) == ([], True)
