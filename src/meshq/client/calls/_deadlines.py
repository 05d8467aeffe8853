"""Deadlines: one timer of the client watches all waits, and ends a wait that takes too long."""

from __future__ import annotations

import math
from typing import Any, Protocol

import trio

from meshq.client.calls._calls import Call, OpenCompletion
from meshq.client.calls._link_failures import LinkFailures
from meshq.client.calls._slots import SlotWait
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import Wakeup


class TimedWait(Protocol):
    """A wait that ends with a timeout, unless it is decided before."""

    #: When the wait began; seconds of trio's clock.
    since: float

    @property
    def done(self) -> bool:
        """Whether the wait is decided."""

    @property
    def queued(self) -> bool:
        """Whether it waits for its turn: while there is a link, overload is waited out."""

    @property
    def waits_for_disk(self) -> bool:
        """Whether a queued wait has a timeout from the moment at which the node's disk was full."""

    def expired(self, why: BaseException) -> None:
        """Fail the wait with a timeout."""


class WaitDeadlines:
    """The timed waits of one session, and its timer."""

    __slots__ = ("_call_timeout", "_failover_timeout", "_link_failures", "_timer", "changed_at", "timed", "wakeups")

    def __init__(self, settings: ClientSettings, link_failures: LinkFailures) -> None:
        self._call_timeout = settings.call_timeout
        self._failover_timeout = settings.call_failover_timeout
        self._link_failures = link_failures
        #: Waits that have a timeout.
        self.timed: dict[TimedWait, None] = {}
        #: Wakeups with their deadlines.
        self.wakeups: dict[Wakeup, float] = {}
        #: When the link was attached or lost.
        self.changed_at: float = 0.0
        self._timer: trio.CancelScope | None = None

    def look_at(self, deadline: float) -> None:
        """Tell the timer of a deadline, which may be earlier than all others."""
        timer = self._timer
        if timer is not None and deadline < timer.deadline:
            timer.deadline = deadline

    def look_at_timeout(self, since: float) -> None:
        """Tell the timer of a wait that began at ``since``; a link may be there or not."""
        self.look_at(since + min(self._call_timeout, self._failover_timeout))

    def link_changed(self, now: float) -> None:
        """Note that a link was attached or lost: timeouts begin anew."""
        self.changed_at = now
        self.look_at(now)

    async def sleep(self, deadline: float) -> float:
        """Sleep until ``deadline`` or an earlier one; return the deadline that has passed.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        with trio.CancelScope(deadline=deadline) as self._timer:
            await trio.sleep_forever()
        return self._timer.deadline

    async def wait(self, call: Call | OpenCompletion | SlotWait) -> dict[str, Any]:
        """Wait for an answer, an opening or a slot.

        Checkpoint: always.  Cancellation: the call is withdrawn if it was not sent.
        Raises:
            CallTimeoutError: it took too long.
            MeshqError: it has failed.
        """
        timed = self.timed
        timed[call] = None
        self.look_at_timeout(call.since)
        try:
            values: dict[str, Any] = await call.wait()
            return values
        except trio.Cancelled:
            call.abandon()
            raise
        finally:
            del timed[call]

    def end_overdue(self, now: float, *, attached: bool, full_at: float) -> float:
        """End the overdue waits; return the time of the next deadline.

        ``full_at``: when the node said that its disk is full; infinite: it is not.
        """
        timeout = self._call_timeout if attached else self._failover_timeout
        soonest = math.inf
        for waiter in list(self.timed):
            queued = attached and waiter.queued
            if waiter.done or (queued and (full_at == math.inf or not waiter.waits_for_disk)):
                # What is decided waits for its task; what waits for credit waits overload out, but no full disk.
                continue
            deadline = max(waiter.since, self.changed_at, full_at if queued else 0) + timeout
            if deadline <= now:
                waiter.expired(self._link_failures.late(timeout, attached=attached))
            else:
                soonest = min(soonest, deadline)
        for wakeup, deadline in self.wakeups.items():
            if deadline <= now:
                wakeup.wake()
            else:
                soonest = min(soonest, deadline)
        return soonest
