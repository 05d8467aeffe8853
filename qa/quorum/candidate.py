"""A candidate of a schedule: takes the lock, changes the record, and acts as long as it believes to hold the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from meshq.abc import QuorumRecord
from meshq.errors import ConnectionBrokenError, RefusedError
from meshq.ha.quorum.mesh._lock_machine import Answers, Lock, Steps
from meshq.ha.quorum.mesh._witness_machine import Reply
from qa.quorum.world import NODE_ID, SESSION_S, SHARE, Interval, Paused, WitnessNode, World

#: Seconds after which a question is given up.
CUT_S: Final = 0.3


class Candidate(Paused):
    """A node that wants the lock, holds it for a while, and gives it back."""

    def __init__(self, world: World, name: str, witnesses: Sequence[WitnessNode], lock: type[Lock]) -> None:
        super().__init__(world, name)
        self._witnesses = witnesses
        self._kind = lock
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        instance = f"{self.name}.{self._life}".encode().ljust(16, b".")
        self._lock = self._kind(NODE_ID, instance, size=len(self._witnesses), session_s=SESSION_S, share=SHARE)
        # By the clock of this process; 0.0: the lock is not held.
        self._until = 0.0
        self._interval: Interval | None = None
        # Which of the locks that this life has had; a renewal belongs to one.
        self._number = 0
        # Whether the record is being read or changed: one at a time.
        self._busy = False
        self._later(0.3, self._acquire)

    def restart(self) -> None:
        """Be killed, and begin anew as another instance."""
        self._life += 1
        # What a killed process believes ends with it.
        if self._interval is not None:
            self._interval.end = min(self._interval.end, self.world.now)
        self._waiting.clear()
        self._begin()

    # -- the driver of the decider's steps ------------------------------------------------------------------------

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        life = self._life
        delay = self.world.dice.uniform(0.2, 1.8) * seconds
        self.world.after(delay, lambda: self.do(lambda: work() if life == self._life else None))

    def _run(self, steps: Steps[Any], then: Callable[[Any], None], sent: Answers | None = None) -> None:
        try:
            ask = next(steps) if sent is None else steps.send(sent)
        except StopIteration as end:
            then(end.value)
            return
        except (ConnectionBrokenError, RefusedError) as error:
            then(error)
            return
        began, replies, life = self.clock, dict[str, Reply](), self._life
        over = False

        def resume() -> None:
            nonlocal over
            if not over and life == self._life:
                over = True
                self._run(steps, then, Answers(began, dict(replies)))

        def arrived(name: str, reply: Reply) -> None:
            if over or life != self._life:
                return
            replies[name] = reply
            granted = sum(one.granted for one in replies.values())
            if granted >= ask.wanted or len(replies) - granted > len(self._witnesses) - ask.wanted:
                resume()

        def answered(name: str, member: str, reply: Reply) -> None:
            deliver = partial(self.do, partial(arrived, member, reply))
            self.world.send(name, self.name, deliver)

        for witness in self._witnesses:
            deliver = partial(witness.ask, ask.question, partial(answered, witness.name))
            self.world.send(self.name, witness.name, deliver)
        if ask.wanted == 0:
            resume()
        else:
            self.world.after(CUT_S, partial(self.do, resume))

    # -- what it does -------------------------------------------------------------------------------------------------

    @property
    def _holds(self) -> bool:
        if self._until and self.clock >= self._until:
            self._until = 0.0
            self.world.history.counts["leases run out"] += 1
        return self._until > 0.0

    def _change_run(self, steps: Steps[Any], then: Callable[[Any], None]) -> None:
        number, self._busy = self._number, True

        def ended(value: Any) -> None:
            self._busy = False
            if number == self._number:
                then(value)

        self._run(steps, ended)

    def _acquire(self) -> None:
        if self._busy:
            self._later(0.3, self._acquire)
            return
        self.world.history.counts["tries"] += 1
        asked = self.world.now
        self._run(self._lock.acquire(), lambda until: self._acquired(asked, until))

    def _acquired(self, asked: float, until: float | Exception) -> None:
        if not isinstance(until, float) or self.clock >= until:
            kind = "quorum not reached" if isinstance(until, Exception) else "lock refused"
            self.world.history.counts[kind] += 1
            self._later(0.3, self._acquire)
            return
        self.world.history.counts["locks"] += 1
        self._until = until
        self._number += 1
        self._interval = Interval(self.name, self.world.now, self.real(until))
        self.world.history.acting.append(self._interval)
        self._later(SESSION_S * SHARE / 3, partial(self._renew, self._number))
        self._change_run(self._lock.read(held=True), partial(self._found, asked))

    def _found(self, asked: float, record: QuorumRecord | Exception) -> None:
        if isinstance(record, QuorumRecord):
            self.world.history.found.append((asked, record))
            self._change(self._number, record)

    def _renew(self, number: int) -> None:
        if number != self._number:
            return
        if self._holds:
            self._run(self._lock.renew(), partial(self._renewed, number))
        else:
            self._stop()
            self._later(0.3, self._acquire)

    def _renewed(self, number: int, until: float | Exception) -> None:
        if number != self._number:
            return
        if not self._holds or isinstance(until, Exception):
            self._stop()
            self._later(0.3, self._acquire)
        else:
            if until > self._until:
                self._until = until
                assert self._interval is not None
                self._interval.end = self.real(until)
            self._later(SESSION_S * SHARE / 3, partial(self._renew, number))

    def _change(self, number: int, record: QuorumRecord) -> None:
        if number != self._number or not self._holds:
            return
        if self.world.dice.random() < 0.15:
            self._stop()
            self.world.history.counts["releases"] += 1
            self._run(self._lock.release(), lambda _: self._later(0.5, self._acquire))
            return
        new = attrs.evolve(record, sequence=record.sequence + 1, holder=self.name)
        asked = self.world.now
        self._change_run(self._lock.compare_and_set(record, new), partial(self._changed, asked, record, new))

    def _changed(self, asked: float, before: QuorumRecord, new: QuorumRecord, stored: bool | Exception) -> None:
        if stored is True:
            self.world.history.stored.append((asked, self.world.now, before, new))
            self._later(0.2, partial(self._change, self._number, new))
        elif self._holds:
            self.world.history.counts["records in doubt"] += 1
            self._read_again(self._number)

    def _read_again(self, number: int) -> None:
        if number == self._number and self._holds:
            self._change_run(self._lock.read(held=True), self._again)

    def _again(self, found: QuorumRecord | Exception) -> None:
        if isinstance(found, QuorumRecord):
            self._later(0.2, partial(self._change, self._number, found))
        elif self._holds:
            self._later(0.2, partial(self._read_again, self._number))

    def _stop(self) -> None:
        self._until = 0.0
        self._number += 1
        if self._interval is not None:
            self._interval.end = min(self._interval.end, self.world.now)
            self._interval = None
