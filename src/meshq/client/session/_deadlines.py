"""Deadlines: ends waits of a session that take too long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshq.client.calls._slots import SlotWait
from meshq.client.outgoing._outbox import OutgoingRun

if TYPE_CHECKING:
    from meshq.client.session._session import ClientSession


def end_overdue(session: ClientSession, now: float) -> float:
    """End the overdue waits of a session; return the time of the next deadline."""
    attached = session.link is not None
    settings, refused_at = session.settings, session.send_queue.refused_at
    timeout = settings.call_timeout if attached else settings.call_failover_timeout
    soonest = math.inf
    for waiter in list(session.timed):
        queued = attached and isinstance(waiter, OutgoingRun | SlotWait) and waiter.queued
        if waiter.done or (queued and (refused_at == math.inf or isinstance(waiter, SlotWait))):
            # What is decided waits for its task; what waits for credit waits overload out, but no full disk.
            continue
        deadline = max(waiter.since, session.changed_at, refused_at if queued else 0) + timeout
        if deadline <= now:
            waiter.expired(session.link_failures.late(timeout, attached=attached))
        else:
            soonest = min(soonest, deadline)
    for wakeup, deadline in session.wakeups.items():
        if deadline <= now:
            wakeup.wake()
        else:
            soonest = min(soonest, deadline)
    return soonest
