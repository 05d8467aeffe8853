"""A witness: one voter of a quorum, which promises a ballot of a node id to one session, and keeps a record.

Witnesses do not know each other.  A session that wants the lock asks all of them for a promise with a *ballot*, a
number that is higher than all that were promised; more than half of the promises are the lock.  A witness promises each
ballot once, and breaks no promise while its lease lasts.  A record is kept under the ballot of the lock, and a session
that gets the lock stores the newest record that it was told under its own ballot, before it does anything else: so what
more than half have kept is never lost.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from meshq.abc import QuorumRecord

Kind = Literal["read", "claim", "renew", "store", "release", "list"]
#: A page of a list has so many node ids.
LIST_MAX: Final = 1_000
MEMBER_DIGITS: Final = 8
#: ``held``: another session has the promise.  ``ballot``: a higher one was promised.  ``servers``: the node id belongs
#: to another set of witnesses.  ``full``: the witness knows as many node ids as it may.
Reason = Literal["", "held", "ballot", "servers", "full"]
#: A witness knows no more node ids: each is a record in its journal, for good.
NODE_IDS_MAX: Final = 10_000
#: How far a ballot may be ahead of the last one: nobody can use up the numbers.
BALLOTS_AHEAD: Final = 2**32


@attrs.frozen(kw_only=True)
class Question:
    """A question of a session to a witness.

    ``number``: of a record under one ballot; of two records that a witness has kept the later one counts.
    ``forget``: of a release: nothing was stored under the ballot, so that the node id belongs to no set of witnesses.
    ``list`` asks for the known node ids from ``node_id`` on.
    """

    kind: Kind
    node_id: bytes
    instance: bytes = b""
    ballot: int = 0
    session_s: float = 0.0
    servers: tuple[str, ...] = ()
    number: int = 0
    record: QuorumRecord = attrs.field(factory=QuorumRecord)
    forget: bool = False


@attrs.frozen(kw_only=True)
class VoterState:
    """The durable memory of a witness about a node id.

    ``ballot``, ``instance``, ``session_s``: what was promised last, to whom, and for how long without a renewal.
    ``released``: the session has given the lock back.  ``servers``: all witnesses of the node id, by ``member_of``.
    ``kept``: the ballot and the number under which ``record`` was kept.
    """

    ballot: int = 0
    instance: bytes = b""
    session_s: float = 0.0
    released: bool = True
    servers: tuple[str, ...] = ()
    kept: tuple[int, int] = (0, 0)
    record: QuorumRecord = attrs.field(factory=QuorumRecord)


@attrs.frozen(kw_only=True)
class Reply:
    """The answer of a witness, with the promise of the witness for the node id."""

    granted: bool
    reason: Reason
    promise: VoterState


def member_of(name: str, journal_id: bytes) -> str:
    """Return the name of a witness together with its journal."""
    return f"{name}/{journal_id.hex()[:MEMBER_DIGITS]}"


def name_of(member: str) -> str:
    """Return the name of a witness without its journal."""
    return member.rpartition("/")[0]


class Witness:
    """The promises of a witness, by node id.

    ``member``: the name of the witness with the id of its journal.  A witness that has lost its journal is another
    member, and promises nothing for the node ids of the one that it was.
    """

    def __init__(self, member: str) -> None:
        self.member: str = member
        self._promises: dict[bytes, VoterState] = {}
        # When a promise may be broken; by the clock of the witness, which it has anew after a restart.
        self._free_at: dict[bytes, float] = {}

    @property
    def promises(self) -> dict[bytes, VoterState]:
        """The promises, by node id."""
        return dict(self._promises)

    def promised(self, node_id: bytes) -> VoterState:
        """Return the promise for a node id."""
        return self._promises.get(node_id, VoterState())

    def listed(self, first: bytes) -> list[bytes]:
        """Return the known node ids from one on, in order; no more than a page of them."""
        known = (node_id for node_id, promise in self._promises.items() if promise.ballot and node_id >= first)
        return sorted(known)[:LIST_MAX]

    def recover(self, node_id: bytes, promise: VoterState, now: float) -> None:
        """Take over a stored promise.  Unless it was given back, it lasts for a whole session from now on."""
        self._promises[node_id] = promise
        self._free_at[node_id] = now + promise.session_s

    def held(self, node_id: bytes, now: float) -> bool:
        """Whether a session has the promise."""
        promise = self._promises.get(node_id, VoterState())
        return not promise.released and now < self._free_at[node_id]

    def answer(self, question: Question, now: float) -> tuple[Reply, bool]:
        """Answer a question; also return whether the promise has changed, which is durable before the answer goes."""
        before = self._promises.get(question.node_id, VoterState())
        after, reason = self._judge(question, before, now)
        if after is not before:
            # Whoever only asks about a node id makes nothing.
            self._promises[question.node_id] = after
        return Reply(granted=not reason, reason=reason, promise=after), after is not before

    def _judge(self, question: Question, promise: VoterState, now: float) -> tuple[VoterState, Reason]:
        match question.kind:
            case "claim":
                return self._claim(question, promise, now)
            case "renew":
                if not self._has(promise, question) or promise.released:
                    return promise, "ballot"
                self._free_at[question.node_id] = now + promise.session_s
            case "store":
                return self._store(question, promise)
            case "release":
                if self._has(promise, question):
                    forget = question.forget and promise.kept == (0, 0)
                    return attrs.evolve(promise, released=True, servers=() if forget else promise.servers), ""
            case "read" | "list":
                pass
        return promise, ""

    @staticmethod
    def _has(promise: VoterState, question: Question) -> bool:
        """Whether the promise is that of the one who asks: two sessions may have claimed the same ballot."""
        return (promise.ballot, promise.instance) == (question.ballot, question.instance) and promise.ballot > 0

    def _claim(self, question: Question, promise: VoterState, now: float) -> tuple[VoterState, Reason]:
        if promise.servers not in ((), question.servers) or self.member not in question.servers:
            return promise, "servers"
        if question.node_id not in self._promises and len(self._promises) >= NODE_IDS_MAX:
            return promise, "full"
        if promise.instance != question.instance and self.held(question.node_id, now):
            return promise, "held"
        if not promise.ballot < question.ballot <= promise.ballot + BALLOTS_AHEAD:
            return promise, "ballot"
        self._free_at[question.node_id] = now + question.session_s
        after = attrs.evolve(
            promise,
            ballot=question.ballot,
            instance=question.instance,
            session_s=question.session_s,
            released=False,
            servers=question.servers,
        )
        return after, ""

    def _store(self, question: Question, promise: VoterState) -> tuple[VoterState, Reason]:
        if not self._has(promise, question):
            return promise, "ballot"
        place = (question.ballot, question.number)
        if place <= promise.kept:
            return promise, ""
        return attrs.evolve(promise, kept=place, record=question.record), ""
