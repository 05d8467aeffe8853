"""The count of a vote: who is asked, how many have to say yes, and who votes about the next change."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

import attrs

from meshq.ha.quorum._vote_machine import Vote

#: The characters of the id of a voter, in hexadecimal, before its URL.
BOX_ID_CHARACTERS = 32


def majority(others: int) -> int:
    """Return how many of so many voters are more than half; of none: 0."""
    return others // 2 + 1 if others else 0


def box_of(voter: str) -> str:
    """Return the id of a voter, in hexadecimal, without its URL."""
    return voter[:BOX_ID_CHARACTERS]


def url_of(voter: str) -> str:
    """Return the URL of a voter."""
    return voter[BOX_ID_CHARACTERS:]


@attrs.frozen
class Voters:
    """The nodes that vote about the next change of a pair, each as its id and its URL in one text.

    ``now``: those of which both nodes of the pair know.  ``later``: those that the replica was told, and may not know
    yet; empty: there are none such.
    """

    now: tuple[str, ...] = ()
    later: tuple[str, ...] = ()

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of voters in each of which a vote has to be won."""
        return tuple(one for one in (self.now, self.later) if one)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of all of them."""
        return tuple(dict.fromkeys(url_of(one) for each in self.sets for one in each))

    def next(self, found: Sequence[str], serving: Container[str]) -> tuple[str, ...]:
        """Return the voters that take the place of the present ones; these, where fewer than a majority was found.

        ``found``: the voters that have answered now; those at the URLs that are ``serving`` vote from then on.
        A node that reaches but a few of them does not forget the rest: the others may be there, and vote.  One in
        whose place another id has answered is gone for good: it has lost its file, and would never be found again.
        """
        boxes, places = {box_of(one) for one in found}, {url_of(one) for one in found}
        left = [one for one in self.now if box_of(one) in boxes or url_of(one) not in places]
        there = sum(box_of(one) in boxes for one in left)
        new = tuple(sorted(one for one in found if url_of(one) in serving))
        return new if new and there >= majority(len(left)) else self.now


def apart_from(serving: Sequence[str], hosts: Container[str]) -> tuple[str, ...]:
    """Return who of the nodes that serve is to vote about a pair whose backup runs in the process of one of them.

    The host is lost together with the backup.  Where the number is even, one voter less makes no vote harder to win,
    and a primary that has lost both needs one vote less of those that are left.  A single voter stays: alone it keeps
    the two nodes of the pair from serving both.
    """
    others = tuple(one for one in serving if one not in hosts)
    return others if others and len(serving) % 2 == 0 else tuple(serving)


class VotePolicy(Protocol):
    """The settings of a vote."""

    def vote(self, *, others: int) -> Vote:
        """Begin a vote of so many nodes."""


class Count:
    """The votes of one attempt, in each set of voters that has to agree.

    The decision is final, and the same in every order of the same answers.
    """

    def __init__(self, voters: Voters, policy: VotePolicy, *, least: bool = False, agreed: int = 0) -> None:
        """Begin; ``least``: more than half is enough, also where the policy wants more.

        ``agreed``: so many nodes say yes and are not asked; they count for what the policy wants of voters.  Neither
        makes it fewer than more than half of those that are asked: two nodes that ask could both win.
        """
        sets = voters.sets or ((),)
        #: All that are asked, in order.
        self.asked: tuple[str, ...] = tuple(dict.fromkeys(one for each in sets for one in each))
        self._votes: list[tuple[frozenset[str], Vote]] = []
        for each in sets:
            boxes = frozenset(map(box_of, each))
            wanted = 0 if least else policy.vote(others=len(boxes)).needed - (agreed if boxes else 0)
            self._votes.append((boxes, Vote(max(wanted, majority(len(boxes))), len(boxes))))
        self._against: dict[str, set[str]] = {}
        self._yes: set[str] = set()
        self._decision: bool | None = None
        self._decide()

    @property
    def needed(self) -> int:
        """How many have to say yes, in the set that needs most."""
        return max(vote.needed for _, vote in self._votes)

    @property
    def yes(self) -> int:
        """How many have said yes and were counted."""
        return len(self._yes)

    @property
    def decision(self) -> bool | None:
        """True or False once it is decided; None before."""
        return self._decision

    def add(self, voter: str, yes: bool, holder: str = "") -> bool | None:
        """Count an answer; return the decision.  ``holder``: for whom the voter has voted instead."""
        box = box_of(voter)
        if not yes and holder:
            self._against.setdefault(holder, set()).add(box)
        if self._decision is None:
            if yes and any(box in boxes for boxes, _ in self._votes):
                self._yes.add(box)
            for boxes, vote in self._votes:
                if box in boxes:
                    vote.add(box, yes)
            self._decide()
        return self._decision

    def close(self) -> bool:
        """End the count: a missing answer counts as no.  Return the decision."""
        if self._decision is None:
            self._decision = False
        return self._decision

    def elects(self, holder: str) -> bool:
        """Whether another node may have won: more than half of a set has voted for it."""
        boxes = self._against.get(holder, set())
        return any(each and len(boxes & each) >= majority(len(each)) for each, _ in self._votes)

    def _decide(self) -> None:
        decisions = [vote.decision for _, vote in self._votes]
        if False in decisions:
            self._decision = False
        elif None not in decisions:
            self._decision = True
