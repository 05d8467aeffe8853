"""A durable cursor: a named reader of one queue, with a place in its numbers and a lease for one owner at a time.

The time is an argument: milliseconds of a clock that nobody can set.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.broker.cursors._cursor_life import CURSOR_TRANSITIONS, FREE, HELD
from meshq.broker.cursors._holes_machine import VOLATILE, Hole, HoleLog
from meshq.errors import CursorHeldError, MeshqError, UsageError
from meshq.lifecycle import LifeCycle
from meshq.wire import decline

#: A cursor is said to lag from this part of its maximum on.
LAGGING_SHARE: Final = 0.8
#: A maximum that nothing exceeds: any number of messages may wait, whatever the settings of the address say.
ANY_LAG: Final = (1 << 63) - 1


@attrs.frozen(kw_only=True)
class CursorFacts:
    """The values of a cursor that the journal keeps."""

    #: The number of its queue, and the queue's name when the cursor was registered.
    queue: int
    queue_name: str
    name: str
    #: Who registered it; empty: nobody has a name there.
    user: str = ""
    #: Rises with each cursor that is registered on a node.
    epoch: int
    #: The first number that is read; the number that the next message had when the cursor was registered.
    start: int
    since: int
    #: Everything from ``start`` up to, and without, this number is acknowledged, and gone.
    processed: int
    #: What is below this number, and not acknowledged, does not expire.
    pinned: int
    #: The number of the last owner, which no other owner of a cursor on the node ever has; 0: there was none.
    fence: int = 0
    #: The owner, for people; and what proves it.  Empty: the last owner has released the cursor.
    holder: str = ""
    token: str = ""
    lease_ms: int
    #: So many messages may wait; 0: as many as the settings of the address allow.
    max_lag: int = 0


@attrs.frozen(kw_only=True)
class CursorRequest:
    """The arguments of a request for a cursor."""

    name: str
    user: str = ""
    #: Where it begins if it is registered now: ``earliest`` or ``latest``.
    start: str = "earliest"
    #: Proves the owner, and names it for people.
    token: str
    holder: str
    lease_ms: int
    #: 0: that of the settings of the address.
    max_lag: int = 0


class CursorMachine:
    """A cursor.  The shell writes ``facts`` down when they have changed."""

    __slots__ = ("_warned", "facts", "floor", "holes", "lease_until_ms", "life", "position", "renewals", "settled")

    def __init__(self, facts: CursorFacts, now_ms: float, *, floor: int, position: int = 0) -> None:
        self.facts: CursorFacts = facts
        #: Numbers below this one were given in an earlier life of the node.
        self.floor: int = floor
        #: The position of the record that says ``facts``; 0: none.
        self.position: int = position
        self.holes: HoleLog = HoleLog()
        self.life: LifeCycle = LifeCycle(f"the cursor {facts.name!r} of {facts.queue_name!r}", CURSOR_TRANSITIONS, FREE)
        #: When the lease ends, and how often it was taken or renewed in this life of the node.
        self.lease_until_ms: float = now_ms
        self.renewals: int = 0
        self._warned = False
        #: Whether what is acknowledged is out of the queue; not known after a restart.
        self.settled: bool = False
        if facts.token:
            # Its owner may live: a restart of the node takes nothing away.
            self._lease("take", now_ms)

    @property
    def held(self) -> bool:
        """Whether an owner had a running lease at the last look at the clock."""
        return self.life.state == HELD

    def look(self, now_ms: float) -> None:
        """End the lease if its time is over."""
        if self.held and now_ms >= self.lease_until_ms:
            self.life.on("expire")

    def _lease(self, event: str, now_ms: float) -> None:
        self.life.on(event)
        self.lease_until_ms = now_ms + self.facts.lease_ms
        self.renewals += 1

    # -- owners

    def take(self, wanted: CursorRequest, fence: int, now_ms: float) -> bool:
        """Take the cursor for an owner; return False while another one has its lease.

        ``fence``: that of a new owner, higher than all before.  The same owner keeps the one that it has.
        """
        self.look(now_ms)
        facts = self.facts
        if wanted.token != facts.token:
            if self.held:
                return False
            facts = attrs.evolve(facts, fence=fence, token=wanted.token, holder=wanted.holder)
        facts = attrs.evolve(facts, lease_ms=wanted.lease_ms, max_lag=wanted.max_lag)
        if facts != self.facts:
            self.facts = facts
        self._lease("take", now_ms)
        return True

    def check(self, fence: int) -> None:
        """Check that a fence is that of the last owner.

        Raises:
            CursorLostError: the cursor was released, or taken by another owner.
        """
        facts = self.facts
        if fence == facts.fence and facts.token:
            return
        if fence == facts.fence:
            raise lost(facts.queue_name, facts.name, "released")
        raise lost(facts.queue_name, facts.name, "taken", facts.holder or "somebody else")

    def renew(self, fence: int, now_ms: float) -> None:
        """Renew the lease; a lease that ran out is renewed, too, unless another owner has taken the cursor.

        Raises:
            CursorLostError: the cursor was released, or taken by another owner.
        """
        self.check(fence)
        self._lease("renew", now_ms)

    def release(self, fence: int) -> None:
        """Give the cursor up; the next owner need not wait.

        Raises:
            CursorLostError: the cursor was released, or taken by another owner.
        """
        self.check(fence)
        self.life.on("release")
        self.facts = attrs.evolve(self.facts, token="", holder="")

    # -- the place

    def pin(self, fence: int, number: int, high: int, now_ms: float) -> None:
        """Keep everything below ``number`` from expiring; a number that is not above the last one changes nothing.

        Raises:
            CursorLostError: the cursor was released, or taken by another owner.
            UsageError: the number is above the high mark.
        """
        self._check_number("pin", fence, number, high)
        if number > self.facts.pinned:
            self.facts = attrs.evolve(self.facts, pinned=number)
        self._lease("renew", now_ms)

    def check_ack(self, fence: int, number: int, high: int) -> None:
        """Check an acknowledgement before anything of it is done.

        Raises:
            CursorLostError: the cursor was released, or taken by another owner.
            UsageError: the number is above the high mark.
        """
        self._check_number("acknowledge", fence, number, high)

    def acknowledged(self, number: int) -> None:
        """Note that everything below ``number`` is acknowledged; a lower number than before changes nothing."""
        facts = self.facts
        if number > facts.processed:
            self.facts = attrs.evolve(facts, processed=number, pinned=max(facts.pinned, number))

    def _check_number(self, what: str, fence: int, number: int, high: int) -> None:
        self.check(fence)
        if number > high:
            facts = self.facts
            raise UsageError(
                f"the cursor {facts.name!r} of {facts.queue_name!r} can {what} up to its high mark {high}, not {number}"
            )

    def keeps(self, number: int) -> bool:
        """Whether the message of a number may not expire: it is pinned, and not acknowledged."""
        return self.facts.start <= number < self.facts.pinned

    # -- too far behind

    def max_lag(self, default: float) -> int:
        """Return how many messages may wait, where ``default`` may by the settings of the address; 0: any number."""
        most = self.facts.max_lag or default
        return int(most) if most < ANY_LAG else 0

    def lags(self, waiting: int, most: int) -> bool:
        """Return True once when so many waiting messages are close to the maximum, or above; again after a recovery."""
        behind = bool(most) and waiting >= most * LAGGING_SHARE
        news, self._warned = behind and not self._warned, behind
        return news

    def is_abandoned(self, waiting: int, most: int, now_ms: float) -> bool:
        """Whether the cursor is to be given up: more than ``most`` messages wait, and no lease is running."""
        self.look(now_ms)
        return bool(most) and waiting > most and not self.held

    # -- numbers of messages that are not durable

    def uncovered(self, high: int, last: int, given: int) -> Hole | None:
        """Return the numbers that are to be written down before a message ``last`` that is not durable is seen.

        ``high``: the high mark.  ``given``: numbers up to here are reserved.  None: they are written down.
        """
        if last < self.holes.volatile_until:
            return None
        return Hole(max(self.holes.volatile_until, high), max(given, last) + 1, VOLATILE)


def lost(queue: str, name: str, reason: str, detail: str = "") -> MeshqError:
    """Make the error for an owner that has lost its cursor: ``taken``, ``released``, ``deleted`` or ``max_lag``."""
    text = f"{name!r} of the queue {queue!r}"
    return decline(f"cursor_{reason}", f"{text}, which {detail} has now" if detail else text)


def check_owner(cursor: CursorMachine | None, queue: str, owner: tuple[str, int]) -> CursorMachine:
    """Return the cursor of a queue after a check of its name and its fence.

    Raises:
        CursorLostError: the cursor is gone, was released, or taken by another owner.
    """
    name, fence = owner
    if cursor is None or cursor.facts.name != name:
        raise lost(queue, name, "deleted")
    cursor.check(fence)
    return cursor


def refuse_if_held(cursor: CursorMachine | None, what: str) -> None:
    """Check that no cursor holds a queue.

    Raises:
        CursorHeldError: one does; names its holder, and what was wanted.
    """
    if cursor is not None:
        raise held_error(cursor.facts, what)


def held_error(facts: CursorFacts, what: str) -> CursorHeldError:
    """Make the error for an operation that a cursor of the queue forbids."""
    holder = f"held by {facts.holder}" if facts.holder else "held by nobody now"
    text = f"the cursor {facts.name!r} ({holder}) has the queue {facts.queue_name!r}: {what}"
    return CursorHeldError(text, queue=facts.queue_name, name=facts.name, holder=facts.holder)
