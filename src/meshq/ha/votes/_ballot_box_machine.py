"""The ballot box of a node: which vote it has given about each node id, and which one it gives next.

A pair changes who has all that was confirmed, one change after the other, and each change has a number.  Who wants to
make the next one asks for votes under that number; a voter gives its vote for a number to one node, and for no number
below.  As more than half of the voters have to agree, at most one node makes the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from meshq.ids import IDENTITY_BYTES

#: Node ids about which one node votes, at most.
BALLOTS_MAX: Final = 4_096
#: The bytes of an attempt by which the life of the node that asks is known, and lives whose attempts one vote is for.
LIFE_BYTES: Final = 8
LIVES_MAX: Final = 8


@attrs.frozen(kw_only=True)
class Ballot:
    """A question: may ``holder`` make the change of a ``number`` for a node id?

    ``vote``: the attempt that the answer is part of; it begins with the life of the node that asks.
    """

    node_id: bytes
    number: int
    holder: str
    vote: bytes


@attrs.frozen(kw_only=True)
class GivenVote:
    """The last vote about a node id: for which change, for whom (empty: it was taken back), and in which attempts.

    ``vote``: the last attempt of each life of the node that asked, one behind the other; which of them was won is not
    known here, so the vote stays until each of them was taken back.
    """

    number: int = 0
    holder: str = ""
    vote: bytes = b""

    @property
    def attempts(self) -> tuple[bytes, ...]:
        """The attempts, in their order."""
        return tuple(self.vote[at : at + IDENTITY_BYTES] for at in range(0, len(self.vote), IDENTITY_BYTES))

    def also_in(self, attempt: bytes) -> bytes:
        """Return the attempts with one more, in the place of an earlier one of its life.

        A node that asks again in one life has not won before.
        """
        kept = [one for one in self.attempts if one[:LIFE_BYTES] != attempt[:LIFE_BYTES]]
        return b"".join((*kept[: LIVES_MAX - 1], attempt))


class BallotBox:
    """The votes of one node.

    ``box_id``: stands for the voter; one that has lost its memory has another, and is another voter.
    """

    def __init__(self, box_id: bytes, given: Mapping[bytes, GivenVote] | None = None) -> None:
        self.box_id: bytes = box_id
        self._given: dict[bytes, GivenVote] = dict(given or {})

    @property
    def given(self) -> Mapping[bytes, GivenVote]:
        """The last vote about each node id."""
        return self._given

    def last(self, node_id: bytes) -> GivenVote:
        """Return the last vote about a node id."""
        return self._given.get(node_id, GivenVote())

    def judge(self, ballot: Ballot) -> GivenVote | None:
        """Return the vote that is to be stored before yes is said; None: the answer is no, and nothing changes."""
        last = self.last(ballot.node_id)
        again = ballot.number == last.number and ballot.holder == last.holder
        if not (ballot.number > last.number or again):
            return None
        if ballot.node_id not in self._given and len(self._given) >= BALLOTS_MAX:
            return None
        vote = last.also_in(ballot.vote) if again else ballot.vote
        return GivenVote(number=ballot.number, holder=ballot.holder, vote=vote)

    def taken_back(self, ballot: Ballot) -> GivenVote | None:
        """Return the vote to store once an attempt was lost; None: its vote is not the last one.

        The number stays: a vote for a change before it is not given any more.
        """
        last = self.last(ballot.node_id)
        if (last.number, last.holder) != (ballot.number, ballot.holder) or ballot.vote not in last.attempts:
            return None
        left = b"".join(one for one in last.attempts if one != ballot.vote)
        return attrs.evolve(last, vote=left) if left else GivenVote(number=ballot.number - 1)

    def adopt(self, node_id: bytes, vote: GivenVote) -> None:
        """Note a vote that is durable now."""
        self._given[node_id] = vote
