"""The failover machine: which target is tried next, after which delay, and when to give up; without clock and network.

An attempt is one round over all targets that are known when the round begins: the nodes in the order of the client's
policy, then spare places, and last the place of one node that has gone, in each round of another one.
If the client's node hands over what it has, the node that takes over comes first, and then that node itself, also if
the client hears of it in the middle of a round; the round ends behind these two when a node says that not everything is
handed over yet.
The first round begins at once; before each further one the back-off is waited: 100, 200, 400, ... ms with the default
settings.  A connection that breaks again soon after it was made does not reset the back-off: a node that accepts and
falls over is not hammered.
"""

from __future__ import annotations

from typing import NamedTuple

from meshq.abc import TargetPolicy
from meshq.client.link._node_book_machine import KnownTargets
from meshq.endpoint import Endpoint
from meshq.errors import invariant


class ConnectAttempt(NamedTuple):
    """Wait ``delay_s``, then connect to ``target``; None: no target is known."""

    delay_s: float
    target: Endpoint | None


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
        "_last",
        "_leave_last",
        "_only_chosen",
        "_order",
        "_policy",
        "_position",
        "_round",
    )

    def __init__(
        self,
        policy: TargetPolicy,
        *,
        initial_attempts: float,
        attempts: float,
        interval_s: float,
        factor: float,
        interval_s_max: float,
    ) -> None:
        self._policy = policy
        self._initial_attempts = initial_attempts
        self._attempts = attempts
        self._interval_s = interval_s
        self._factor = factor
        self._interval_s_max = interval_s_max
        # The target that we are connected to, or were last, and whether that node has asked its clients to leave.
        self._last: Endpoint | None = None
        self._leave_last = False
        # The targets of this round, how many of them were tried, and rounds finished since the loss.
        self._order: tuple[Endpoint, ...] = ()
        self._position = 0
        self._round = 0
        # How many of them come before all others, and whether the policy wants none of the others.
        self._first = 0
        self._only_chosen = False
        # Waited before the next round; 0: no round has failed yet.
        self._delay_s = 0.0
        # When the link that we have, or had last, was made; None: there has been none.
        self._attached_at: float | None = None

    @property
    def last(self) -> Endpoint | None:
        """The target that the client is connected to, or was last."""
        return self._last

    def next(self, known: KnownTargets) -> ConnectAttempt | None:
        """The next attempt to connect; None: all attempts are used up.

        ``known``: the targets that are known now.  Those that come first count at once, the others when a round begins.
        """
        allowed = self._initial_attempts if self._attached_at is None else self._attempts
        if self._round >= allowed:
            return None
        delay = 0.0
        if self._position == 0:
            delay = self._delay_s
            self._order = self._begin_round(known)
        else:
            self._put_first(known.first)
        target = self._order[self._position] if self._order else None
        self._position += 1
        self._end_round()
        return ConnectAttempt(delay, target)

    def _end_round(self) -> None:
        """End the round if all its targets were tried."""
        if self._position >= len(self._order):
            self._position = 0
            self._round += 1
            self._delay_s = min(max(self._delay_s * self._factor, self._interval_s), self._interval_s_max)

    def hold(self) -> None:
        """End the round behind the targets that come first: a handover has not come to its end."""
        if self._position:
            self._order = self._order[: max(self._position, self._first)]
            self._end_round()

    def _put_first(self, places: tuple[Endpoint, ...]) -> None:
        """Put places before all others that are left in this round; a place that was tried in it is left out.

        Else another node would take the client in, and take what it sends again for something new: what the client's
        own node has stored, with the ids of it, is at the node that takes over.
        """
        tried, left = self._order[: self._position], self._order[self._position :]
        following = tuple(place for place in dict.fromkeys(places) if place not in tried)
        if following and left[: len(following)] != following and not self._only_chosen:
            self._order = (*tried, *following, *(place for place in left if place not in following))
            self._first = len(tried) + len(following)

    def _begin_round(self, known: KnownTargets) -> tuple[Endpoint, ...]:
        order = self._policy.order(known.nodes, last=self._last, leave_last=self._leave_last)
        self._first = 0
        self._only_chosen = len(order) < len(known.nodes)
        if self._only_chosen:
            # The policy wants none of the others; the last one, which is not its choice, may be none of the nodes.
            return tuple(dict.fromkeys((*(place for place in known.first if place == self._last), *order)))
        more = (*known.spares, *known.gone[self._round % len(known.gone) :][:1]) if known.gone else known.spares
        first = tuple(dict.fromkeys(known.first))
        self._first = len(first)
        return tuple(dict.fromkeys((*first, *order, *more)))

    def attached(self, target: Endpoint, now: float) -> None:
        """Note a link to ``target``."""
        self._last, self._leave_last = target, False
        self._attached_at = now

    def lost(self, now: float, *, leave: bool) -> None:
        """Note the loss of the link.  ``leave``: the target asked its clients to leave."""
        invariant(self._attached_at is not None, "only what was attached can be lost")
        assert self._attached_at is not None
        self._position = 0
        self._round = 0
        if now - self._attached_at >= self._interval_s_max:
            self._delay_s = 0.0
        elif self._delay_s == 0.0:
            self._delay_s = self._interval_s
        self._leave_last = leave

    def __repr__(self) -> str:
        return f"<FailoverMachine round={self._round} position={self._position} delay={self._delay_s}>"
