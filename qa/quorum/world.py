"""A world of one schedule: witnesses and candidates with the deciders of the product, and everything that fails."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs

from meshq.abc import QuorumRecord
from meshq.ha.quorum.mesh._witness_machine import Question, Reply, VoterState, Witness, member_of

NODE_ID: Final = b"n" * 16
SESSION_S: Final = 2.0
SHARE: Final = 0.33
#: Clocks go so much faster or slower, at most.
DRIFT: Final = 0.02


@attrs.define
class Interval:
    """The time for which a candidate may act."""

    who: str
    begin: float
    end: float


@attrs.define
class History:
    """The facts of a schedule, for its checks."""

    acting: list[Interval] = attrs.field(factory=list)
    #: Records that were stored, by the candidate's word: when it was asked for, when told, what was there before.
    stored: list[tuple[float, float, QuorumRecord, QuorumRecord]] = attrs.field(factory=list)
    #: Records that a holder has read as it got the lock: when it asked for the lock, and the record.
    found: list[tuple[float, QuorumRecord]] = attrs.field(factory=list)
    #: The ballots that each witness with its journal has promised, and to whom.
    promised: dict[tuple[str, int], bytes] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)


class World:
    """The clock, the events, the network."""

    def __init__(self, seed: int) -> None:
        self.dice: random.Random = random.Random(seed)
        self.now: float = 0.0
        self.history: History = History()
        #: The network loses nothing any more, and is fast.
        self.calm: bool = False
        #: Directions that lose everything: (from, to).
        self.cut: set[tuple[str, str]] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Let something happen later."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Let something happen after so many seconds."""
        self.at(self.now + seconds, do)

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """Send a message, which may be lost, and arrives late."""
        if self.calm:
            self.after(self.dice.uniform(0.002, 0.022), deliver)
            return
        if (sender, receiver) in self.cut or self.dice.random() < 0.02:
            self.history.counts["lost messages"] += 1
            return
        late = self.dice.random()
        self.after(0.002 + (late * 0.02 if late < 0.97 else self.dice.uniform(0.02, 1.5 * SESSION_S)), deliver)

    def run(self, until: float) -> None:
        """Run all that happens until then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()


class Paused:
    """A process that can be stopped and continued, with a clock of its own, which goes on meanwhile."""

    def __init__(self, world: World, name: str) -> None:
        self.world: World = world
        self.name: str = name
        self._rate = 1 + world.dice.uniform(-DRIFT, DRIFT)
        self._began = world.dice.uniform(0, 1_000)
        self._paused = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def clock(self) -> float:
        """The monotonic clock of the process."""
        return self._began + self.world.now * self._rate

    def real(self, clock: float) -> float:
        """The time at which the clock of the process shows this."""
        return (clock - self._began) / self._rate

    def do(self, work: Callable[[], None]) -> None:
        """Do something as soon as the process runs."""
        if self._paused:
            self._waiting.append(work)
        else:
            work()

    def pause(self, seconds: float) -> None:
        """Stop the process for a while."""
        if not self._paused:
            self._paused = True
            self.world.after(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self.do(work)


class WitnessNode(Paused):
    """A witness with a disk.  When the witness is killed, writes that are not durable are lost."""

    def __init__(self, world: World, name: str, make: Callable[[str], Witness]) -> None:
        super().__init__(world, name)
        self._make = make
        #: The name with the journal: a witness that forgets is another member.
        self.member: str = member_of(name, bytes(4))
        self._witness = make(self.member)
        self._journals = 0
        self._durable: VoterState | None = None
        # When the disk has done all that it was told.
        self._synced_at = 0.0
        self._life = 0
        self._up = True

    def ask(self, question: Question, answer: Callable[[str, Reply], None]) -> None:
        """Be asked, and answer once the promise is durable."""
        if self._up:
            self.do(lambda: self._answer(question, answer, self._life))

    def _answer(self, question: Question, answer: Callable[[str, Reply], None], life: int) -> None:
        if life != self._life or not self._up:
            return
        reply, changed = self._witness.answer(question, self.clock)
        if changed:
            self._synced_at = max(self._synced_at, self.world.now + self.world.dice.uniform(0.001, 0.005))
        elif self._synced_at <= self.world.now:
            answer(self.member, reply)
            return

        def synced() -> None:
            if life == self._life and self._up:
                self._durable = reply.promise
                self._said(question, reply)
                self.do(lambda: answer(self.member, reply) if life == self._life else None)

        # Also an answer that changes nothing may tell of what is not durable yet.
        self.world.at(self._synced_at, synced)

    def _said(self, question: Question, reply: Reply) -> None:
        if question.kind == "claim" and reply.granted:
            before = self.world.history.promised.setdefault((self.member, question.ballot), question.instance)
            if before != question.instance:
                self.world.history.problems.append(f"Q11: {self.name} has promised ballot {question.ballot} twice")

    def kill(self, seconds: float) -> None:
        """Be without power for a while."""
        if self._up:
            self._up = False
            self._life += 1
            self.world.after(seconds, self._start)

    def forget(self, seconds: float) -> None:
        """Lose the disk, and begin anew after a while."""
        if self._up:
            self._durable = None
            self._journals += 1
            self.kill(seconds)

    def _start(self) -> None:
        self._up = True
        self._paused = False
        self._waiting.clear()
        self.member = member_of(self.name, self._journals.to_bytes(4, "big"))
        self._witness = self._make(self.member)
        if self._durable is not None:
            self._witness.recover(NODE_ID, self._durable, self.clock)
