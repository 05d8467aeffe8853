"""The failover machine: which target is tried next, after which delay, and when to give up; without clock and network.

An attempt is one round over all targets.  The first round begins at once; before each further one the back-off is
waited: 100, 200, 400, ... ms with the default settings.  After a loss the target that was lost is tried first,
because only that one can resume the session; a target that said it is stopping is tried last.  A connection that
breaks again soon after it was made does not reset the back-off: a node that accepts and falls over is not hammered.
"""

from __future__ import annotations

from typing import NamedTuple

from meshq.errors import invariant


class ConnectAttempt(NamedTuple):
    """Wait ``delay_s``, then connect to the target with this index."""

    delay_s: float
    target: int


class FailoverMachine:
    """The rounds of one client."""

    __slots__ = (
        "_attached_at",
        "_attempts",
        "_delay_s",
        "_factor",
        "_first",
        "_initial_attempts",
        "_interval_s",
        "_interval_s_max",
        "_position",
        "_round",
        "_targets",
    )

    def __init__(
        self,
        targets: int,
        *,
        initial_attempts: float,
        attempts: float,
        interval_s: float,
        factor: float,
        interval_s_max: float,
    ) -> None:
        invariant(targets > 0, "a client has a target")
        self._targets = targets
        self._initial_attempts = initial_attempts
        self._attempts = attempts
        self._interval_s = interval_s
        self._factor = factor
        self._interval_s_max = interval_s_max
        # The target that each round begins with.
        self._first = 0
        # Targets tried in this round, and rounds finished since the loss.
        self._position = 0
        self._round = 0
        # Waited before the next round; 0: no round has failed yet.
        self._delay_s = 0.0
        # When the connection that we have, or had last, was made; None: there has been none.
        self._attached_at: float | None = None

    def next(self) -> ConnectAttempt | None:
        """The next attempt to connect; None: all attempts are used up."""
        allowed = self._initial_attempts if self._attached_at is None else self._attempts
        if self._round >= allowed:
            return None
        delay = self._delay_s if self._position == 0 else 0.0
        target = (self._first + self._position) % self._targets
        self._position += 1
        if self._position == self._targets:
            self._position = 0
            self._round += 1
            self._delay_s = min(max(self._delay_s * self._factor, self._interval_s), self._interval_s_max)
        return ConnectAttempt(delay, target)

    def attached(self, target: int, now: float) -> None:
        """Note a connection to ``target``."""
        self._first = target
        self._attached_at = now

    def lost(self, now: float, *, leave: bool) -> None:
        """Note the loss of the connection.  ``leave``: the target asked its clients to leave."""
        invariant(self._attached_at is not None, "only what was attached can be lost")
        assert self._attached_at is not None
        self._position = 0
        self._round = 0
        if now - self._attached_at >= self._interval_s_max:
            self._delay_s = 0.0
        elif self._delay_s == 0.0:
            self._delay_s = self._interval_s
        if leave:
            self._first = (self._first + 1) % self._targets

    def __repr__(self) -> str:
        return f"<FailoverMachine round={self._round} position={self._position} delay={self._delay_s}>"
