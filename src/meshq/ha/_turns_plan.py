"""The order in which nodes try to lock a shared store, by the registrations of waiting nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import attrs

#: For so many periods a registration that is not renewed counts.
PERIODS_FRESH: Final = 4
#: The pause before a store is given back again, in leases: after the first primary that did not come to serve, and the
#: longest one.
FAILBACK_PAUSE_LEASES: Final = (2, 64)

Role = Literal["primary", "backup"]


@attrs.frozen(kw_only=True)
class Registration:
    """A node that waits, as it says itself.

    ``url``: where it is reached; empty: nowhere that is known.  ``beat``: rises with each renewal.
    """

    name: str
    role: Role
    url: str = ""
    beat: int = 0


class WaitingNodes:
    """The nodes that wait for a store, as one node has seen their registrations.

    Clocks of hosts differ, so the age of a registration is the time for which this node has seen it unchanged.
    """

    def __init__(self, period: float) -> None:
        self._age_max = PERIODS_FRESH * period
        # By name: the registration, when it was last seen to change, and when it was first seen.
        self._seen: dict[str, tuple[Registration, float, float]] = {}
        #: The names of the primaries that have waited.
        self.primaries: set[str] = set()

    def look(self, found: Iterable[Registration], now: float) -> None:
        """Compare the registrations that are there now with those seen before."""
        seen: dict[str, tuple[Registration, float, float]] = {}
        for one in found:
            if one.role == "primary":
                self.primaries.add(one.name)
            before = self._seen.get(one.name)
            if before is None:
                seen[one.name] = (one, now, now)
            elif before[0] != one:
                seen[one.name] = (one, now, before[2])
            else:
                seen[one.name] = before
        self._seen = seen

    def fresh(self, now: float) -> tuple[Registration, ...]:
        """Return the registrations that count now, the oldest first."""
        found = [(first, one) for one, changed, first in self._seen.values() if now - changed < self._age_max]
        return tuple(one for _, one in sorted(found, key=lambda entry: (entry[0], entry[1].name)))

    def proved(self, now: float) -> tuple[Registration, ...]:
        """Return the fresh registrations that were seen to be renewed: their nodes are alive."""
        alive = {one.name for one, changed, first in self._seen.values() if changed > first}
        return tuple(one for one in self.fresh(now) if one.name in alive)


@attrs.frozen(kw_only=True)
class TurnFacts:
    """The knowledge of a waiting node when it may try to get the lock.

    ``stopped``: the node that had the store was stopped, and did not hand over.  ``forced``: an operator wants this
    node.  ``yielding``: this node has just handed over, and no other node has taken the store yet.
    """

    name: str
    role: Role
    waiting: Sequence[Registration]
    stopped: bool = False
    forced: bool = False
    yielding: bool = False
    isolated: bool = False


def may_try(facts: TurnFacts) -> bool:
    """Whether a node tries to get the lock now; the lock then decides."""
    if facts.isolated:
        return False
    if facts.forced:
        return True
    if facts.yielding:
        return False
    if facts.role == "primary":
        return True
    return not facts.stopped and not any(one.role == "primary" and one.name != facts.name for one in facts.waiting)


def registers(facts: TurnFacts) -> bool:
    """Whether a node registers as waiting: a node that could not take the store must hold up no other."""
    return not (facts.isolated or facts.yielding)


class FailbackPlan:
    """When a backup gives the store back by itself, to a primary that waits.

    Never before the backup has served: two nodes could otherwise hand a store to each other for ever, and nobody would
    serve.  After a primary that got the store and did not come to serve, only after a pause, which doubles each time.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        # The epoch that was given up for a primary; 0: none, or the primary has served since.
        self._given = 0
        self._failed = 0
        self._not_before = -math.inf

    def gave(self, epoch: int) -> None:
        """Note the end of an epoch in favour of a primary."""
        self._given = epoch

    def saw(self, epoch: int, *, serving: bool) -> None:
        """Note a primary that has the store, and whether it serves."""
        if serving and epoch > self._given:
            self._given = self._failed = 0
            self._not_before = -math.inf

    def took(self, now: float) -> None:
        """Note that this node has the store again."""
        if self._given:
            first, longest = FAILBACK_PAUSE_LEASES
            self._not_before = now + self._lease * min(first * 2**self._failed, longest)
            self._given, self._failed = 0, self._failed + 1

    def due(self, now: float, *, serving: bool, returned: bool) -> bool:
        """Whether a node gives the store back now.

        ``serving``: clients are served.  ``returned``: a primary waits, and is alive.
        """
        return serving and returned and now >= self._not_before
