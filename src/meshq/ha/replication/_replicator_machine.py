"""The replica of a primary: whether it is in sync, how long confirms wait for it, and when it is dropped."""

from __future__ import annotations

import math
from typing import Final

import attrs

from meshq.errors import invariant
from meshq.ha.replication._backlog_machine import Backlog
from meshq.lifecycle import LifeCycle, Transitions
from meshq.wire import violation

#: ``join``: from here on confirms wait for the replica.  ``reach``: it has all that was there then.  ``drop``: it is
#: not waited for any more.
REPLICA_TRANSITIONS: Final[Transitions] = {
    "copying": {"join": "joining", "drop": "dropped"},
    "joining": {"reach": "in_sync", "drop": "dropped"},
    "in_sync": {"drop": "dropped"},
    "dropped": {},
}


@attrs.frozen(kw_only=True)
class ReplicationBounds:
    """Seconds for which confirms are held at most: at the end of a sync, and by a replica that is in sync.

    ``sync_s`` is also the longest time for which a replica is waited for that has been sent all of a copy.
    """

    sync_s: float
    slow_s: float


class Replicator:
    """The positions of one journal, and of the one replica that follows it.

    ``durable`` is the last position that is durable by the policy: that of the replica while confirms wait for it, and
    otherwise the last one placed.  It never falls.
    """

    def __init__(self, last: int, bounds: ReplicationBounds) -> None:
        self._bounds = bounds
        #: The last position that was placed.
        self.placed: int = last
        self._told = last
        self._life: LifeCycle | None = None
        # What the replica has, and the position at which it joined.
        self._has = 0
        self._floor = 0
        # The last moment at which nothing was under way, or something came back.
        self._moved = -math.inf
        self._joined = -math.inf
        # What a replica that copies is to have next.
        self._expected = 0
        #: The batches that the replica lacks, since it has joined.
        self.backlog: Backlog = Backlog()

    @property
    def state(self) -> str:
        """The state of the replica; ``none``: there is none."""
        return "none" if self._life is None else self._life.state

    @property
    def free(self) -> bool:
        """Whether another replica may be accepted."""
        return self._life is None or self._life.ended

    @property
    def in_sync(self) -> bool:
        """Whether the replica may take over."""
        return self.state == "in_sync"

    @property
    def waits(self) -> bool:
        """Whether confirms wait for the replica."""
        return self.state in ("joining", "in_sync")

    @property
    def has(self) -> int:
        """The last position that the replica has on its disk, as it has said."""
        return self._has

    @property
    def behind(self) -> int:
        """How many records the replica lacks."""
        return 0 if self.free else max(0, self.placed - self._has)

    @property
    def durable(self) -> int:
        """The last position that is durable by the policy."""
        reached = max(self._floor, self._has) if self.waits else self.placed
        self._told = max(self._told, min(self.placed, reached))
        return self._told

    def place(self, last: int, now: float, size_bytes: int = 0) -> None:
        """Note that records up to a position were placed, with so many bytes."""
        if self.waits:
            self.backlog.add(last, size_bytes)
        if self.placed <= self._has:
            self._moved = now
        self.placed = max(self.placed, last)

    def accept(self) -> None:
        """Note a node that follows from now on."""
        invariant(self.free, "one replica at a time")
        self._life = LifeCycle("the replica", REPLICA_TRANSITIONS, first="copying")
        self._has = self._expected = 0
        self.backlog.clear()

    def expect(self, position: int, now: float) -> None:
        """Note that everything up to a position was sent to a replica that copies."""
        self._expected, self._moved = position, now

    def join(self, now: float) -> int:
        """Let confirms wait for the replica; return the position that it has to reach."""
        invariant(self._life is not None, "a replica that is accepted joins")
        if self._life is not None:
            self._life.on("join")
        self._floor, self._joined, self._moved = self.placed, now, now
        return self._floor

    def heard(self, position: int, now: float) -> bool:
        """Note the position of the replica; return whether it has just come to be in sync.

        Raises:
            RemoteProtocolError: it has what it was never given, or less than before.
        """
        life = self._life
        if life is None or life.ended:
            return False
        if not self._has <= position <= self.placed:
            detail = f"the replica has position {position}, after {self._has}, of {self.placed}"
            raise violation("bad_number", detail)
        if position > self._has:
            self._moved = now
        self._has = position
        self.backlog.reached(position)
        if life.state == "joining" and position >= self._floor:
            life.on("reach")
            return True
        return False

    def progressed(self, now: float, after: int) -> None:
        """Note a sign of work that is no position: a part of a large body, which was sent after that position, or a
        step of the work on a copy.

        It counts while nothing that came before is missing: a journal that is stuck is slow, whatever else is written.
        """
        if self._has >= after or self.state == "copying":
            self._moved = max(self._moved, now)

    def drop(self) -> bool:
        """Wait for the replica no more; return whether confirms had waited for it."""
        waited = self.waits
        self.backlog.clear()
        if self._life is not None and not self._life.ended:
            self._life.on("drop")
        return waited

    @property
    def deadline(self) -> float:
        """The moment at which the replica has had its time; infinite: nothing is waited for."""
        if self.state == "copying" and self._has < self._expected:
            return self._moved + self._bounds.sync_s
        if self.state == "joining":
            return self._joined + self._bounds.sync_s
        if self.state == "in_sync" and self._has < self.placed:
            return self._moved + self._bounds.slow_s
        return math.inf

    def expired(self, now: float) -> str:
        """Return why the replica is to be dropped now; empty: it is not."""
        if now < self.deadline:
            return ""
        return "slow" if self.state == "in_sync" else "sync_timeout"
