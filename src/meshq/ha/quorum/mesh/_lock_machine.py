"""The lock of a session at its witnesses: the questions, and the meaning of the answers of a majority.

Each call is a generator: it yields a question for all witnesses, and is sent the answers that came.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Final, TypeVar

import attrs

from meshq.abc import QuorumRecord
from meshq.errors import ConnectionBrokenError, RefusedError, caused
from meshq.ha.quorum.mesh._witness_machine import NODE_IDS_MAX, Question, Reply, VoterState, name_of

T = TypeVar("T")
_GONE: Final = "a higher ballot was promised to another session"


@attrs.frozen
class Ask:
    """A question for all witnesses; so many have to grant it, and none is waited for when ``wanted`` is 0."""

    question: Question
    wanted: int


@attrs.frozen
class Answers:
    """The answers to one question, by the name of the witness; ``began``: when the question was sent."""

    began: float
    replies: Mapping[str, Reply]

    @property
    def granted(self) -> int:
        """The number of witnesses that have granted it."""
        return sum(reply.granted for reply in self.replies.values())

    @property
    def newest(self) -> VoterState:
        """The promise with the newest record."""
        return max((reply.promise for reply in self.replies.values()), key=lambda one: one.kept, default=VoterState())

    @property
    def servers(self) -> tuple[str, ...]:
        """The witnesses of the node id, as far as one that has answered knows them."""
        newest = self.newest
        if newest.kept != (0, 0):
            return newest.servers
        return next((reply.promise.servers for reply in self.replies.values() if reply.promise.servers), ())

    def of(self, members: Collection[str]) -> Answers:
        """The answers of some witnesses."""
        return Answers(self.began, {name: reply for name, reply in self.replies.items() if name in members})

    def refused(self, reason: str) -> dict[str, Reply]:
        """The witnesses that have refused it for a reason."""
        return {name: reply for name, reply in self.replies.items() if reply.reason == reason}


Steps = Generator[Ask, Answers, T]


class Lock:
    """The lock of one node id, as one session of it knows it.

    ``size``: the number of witnesses.  ``share``: the part of the session for which a renewal holds.
    """

    def __init__(self, node_id: bytes, instance: bytes, *, size: int, session_s: float, share: float) -> None:
        self._node_id = node_id
        self._instance = instance
        self._size = size
        self._majority = size // 2 + 1
        self._session_s = session_s
        self._lease_s = session_s * share
        # Of the lock that was taken last; and the highest one that was seen anywhere.
        self._ballot = 0
        #: Whether witnesses may have promised that ballot and not have it back.
        self.claimed: bool = False
        self._highest = 0
        self._number = 0
        self._record = QuorumRecord()
        # A record that was sent, with the one before it: it may be kept or not, and has to be before anything else.
        self._doubt: tuple[QuorumRecord, QuorumRecord] | None = None
        #: Witnesses that have lost their journal, and do not count for the node id any more.
        self.forgetful: set[str] = set()

    def acquire(self) -> Steps[float]:
        """Try to get the lock; return until when it is held, or 0.0.

        Raises:
            ConnectionBrokenError: too few witnesses have answered.
            RefusedError: the node id belongs to another set of witnesses.
        """
        servers, first = yield from self._known_servers()
        # No ballot is used twice, also if nobody has heard of it: a release that is late would end the second use.
        self._ballot = ballot = self._highest = self._highest + 1
        self.claimed = True
        claim = self._question("claim", ballot=ballot, session_s=self._session_s, servers=servers)
        # The first claim of a node id ties it to all of its witnesses: so two sets that overlap have one that refuses.
        wanted = self._size if first else self._majority
        answers = yield Ask(claim, wanted)
        self._note(answers)
        if answers.granted < wanted:
            yield from self._give_up(forget=True)
            self._check_servers(answers.refused("servers"), servers)
            self._check_full(answers.refused("full"))
            if answers.refused("held") or answers.refused("ballot"):
                return 0.0
            raise self._unreachable(wanted, answers)
        newest = answers.of([name for name, reply in answers.replies.items() if reply.granted]).newest.record
        store = self._question("store", ballot=ballot, number=1, record=newest, servers=servers)
        stored = yield Ask(store, self._majority)
        if stored.granted < self._majority:
            yield from self._give_up(forget=False)
            if stored.refused("ballot"):
                return 0.0
            raise self._unreachable(self._majority, stored)
        self._number, self._record, self._doubt = 1, newest, None
        return answers.began + self._lease_s

    def renew(self) -> Steps[float]:
        """Renew the lock; return until when it is held then, or 0.0 if too few witnesses have answered.

        Raises:
            RefusedError: the lock is lost.
        """
        answers = yield Ask(self._question("renew", ballot=self._ballot), self._majority)
        self._note(answers)
        if answers.granted >= self._majority:
            return answers.began + self._lease_s
        self._check_lost(answers)
        return 0.0

    def read(self, *, held: bool) -> Steps[QuorumRecord]:
        """Return the record.

        Raises:
            ConnectionBrokenError: too few witnesses have answered.
            RefusedError: the lock is lost, and the record in doubt.
        """
        if held:
            yield from self._settle_doubt()
            return self._record
        answers = yield from self._read()
        return answers.newest.record

    def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> Steps[bool]:
        """Store a record in the place of another one; return whether it was the expected one.

        Raises:
            ConnectionBrokenError: too few witnesses have answered; the record is in doubt.
            RefusedError: the lock is lost.
        """
        again = self._doubt == (expected, new)
        yield from self._settle_doubt()
        if again:
            return True
        if self._record != expected:
            return False
        self._number += 1
        self._doubt = (expected, new)
        yield from self._settle_doubt()
        return True

    def release(self) -> Steps[None]:
        """Give the lock back."""
        self.claimed = False
        yield Ask(self._question("release", ballot=self._ballot), self._size)

    def _give_up(self, *, forget: bool) -> Steps[None]:
        self.claimed = False
        yield Ask(self._question("release", ballot=self._ballot, forget=forget), 0)

    def _settle_doubt(self) -> Steps[None]:
        if self._doubt is None:
            return
        new = self._doubt[1]
        store = self._question("store", ballot=self._ballot, number=self._number, record=new)
        answers = yield Ask(store, self._majority)
        if answers.granted < self._majority:
            self._check_lost(answers)
            raise self._unreachable(self._majority, answers)
        self._record, self._doubt = new, None

    def _known_servers(self) -> Steps[tuple[tuple[str, ...], bool]]:
        """The names of all witnesses of the node id, and whether this is its first claim."""
        answers = yield from self._read()
        newest = answers.newest
        if newest.kept != (0, 0):
            return newest.servers, False
        answers = yield Ask(self._question("read"), self._size)
        if answers.granted < self._size:
            raise self._unreachable(self._size, answers, "the first claim of a node id needs all of them")
        self._note(answers)
        return tuple(sorted(answers.replies)), True

    def _read(self) -> Steps[Answers]:
        """The answers of a majority of the witnesses of the node id.

        A witness that has lost its journal knows of no promise and no record, so its answer doesn't count.
        """
        wanted = self._majority
        while True:
            answers = yield Ask(self._question("read"), wanted)
            self._note(answers)
            known = answers.servers
            strangers = sorted(set(answers.replies) - set(known)) if known else []
            if known and (len(known) != self._size or {*map(name_of, strangers)} - {*map(name_of, known)}):
                raise self._other_servers(known, tuple(sorted(answers.replies)))
            own = answers.of(set(answers.replies) - set(strangers))
            self.forgetful.update(strangers)
            if own.granted >= self._majority:
                return own
            if answers.granted < wanted or wanted == self._size:
                why = f"{', '.join(strangers)} began with an empty journal" if strangers else ""
                raise self._unreachable(self._majority, own, why)
            wanted = min(self._size, self._majority + len(strangers))

    def _question(self, kind: str, **more: object) -> Question:
        return Question(kind=kind, node_id=self._node_id, instance=self._instance, **more)  # type: ignore[arg-type]

    def _note(self, answers: Answers) -> None:
        self._highest = max(self._highest, *(reply.promise.ballot for reply in answers.replies.values()), 0)

    def _check_servers(self, refused: Mapping[str, Reply], mine: tuple[str, ...]) -> None:
        for reply in refused.values():
            # A witness that has lost its journal belongs to no set of witnesses.
            if reply.promise.servers:
                raise self._other_servers(reply.promise.servers, mine)

    @staticmethod
    def _check_full(refused: Mapping[str, Reply]) -> None:
        if refused:
            text = f"{', '.join(sorted(refused))}: no more than {NODE_IDS_MAX:,} node ids get promises"
            raise RefusedError(text, outcome="not_done")

    def _check_lost(self, answers: Answers) -> None:
        if len(answers.refused("ballot")) > self._size - self._majority:
            raise RefusedError(_GONE, outcome="not_done")

    @staticmethod
    def _other_servers(theirs: tuple[str, ...], mine: tuple[str, ...]) -> RefusedError:
        named = ", ".join(theirs)
        text = f"the node id belongs to the quorum of {named}, and this session has answers of {', '.join(mine)}"
        return RefusedError(text, outcome="not_done")

    def _unreachable(self, wanted: int, answers: Answers, why: str = "") -> ConnectionBrokenError:
        text = f"{answers.granted} of {self._size} witnesses have agreed, and {wanted} are needed"
        # The caller knows how the connections have failed.
        return caused(ConnectionBrokenError(f"{text}: {why}" if why else text, outcome="unknown"), None)
