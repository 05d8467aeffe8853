"""What of a session has waited too long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshq.client._outbox import Run
from meshq.client._slots import Turn

if TYPE_CHECKING:
    from meshq.client._session import Session


def due(session: Session, now: float) -> float:
    """End what has waited too long; returns when to look again."""
    attached = session.link is not None
    settings, refused_at = session.settings, session.runs.refused_at
    timeout = settings.call_timeout if attached else settings.call_failover_timeout
    soonest = math.inf
    for waiter in list(session.timed):
        in_line = attached and isinstance(waiter, Run | Turn) and waiter.in_line
        if waiter.done or (in_line and (refused_at == math.inf or isinstance(waiter, Turn))):
            # What is decided waits for its task; what waits for credit waits overload out, but no full disk.
            continue
        deadline = max(waiter.since, session.changed_at, refused_at if in_line else 0) + timeout
        if deadline <= now:
            waiter.expired(session.losses.late(timeout, attached=attached))
        else:
            soonest = min(soonest, deadline)
    for bell, deadline in session.alarms.items():
        if deadline <= now:
            bell.ring()
        else:
            soonest = min(soonest, deadline)
    return soonest
