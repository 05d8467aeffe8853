"""When the messages of a queue without a consumer here are moved: states of queues go in, the queues that are due come
out.

A call says what is, never what has happened; so a call that is repeated, or that comes late, changes nothing but the
moment of the next look (docs/design/redistribution.md).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import attrs

from meshq import limits
from meshq.abc import StrandedQueue

#: The most messages of one move; the queues that are due take turns.
STEP: Final = limits.RUN_MESSAGES_MAX
#: Seconds before a queue is tried again whose move has failed.
PAUSE_S: Final = 1.0
#: How many times as long as a look that has found nothing took the next one waits, if nothing but messages came.
REST: Final = 9.0


@attrs.define
class _Waiting:
    """A queue whose messages only consumers elsewhere can get.

    ``since``: the first moment at which that was so.  ``delay``: that of its address.  ``filters``: those of consumers
    here, who get the messages that these take.  ``demand``: what is known of those elsewhere.  ``not_before``: a move
    has failed, and this is the moment of the next one.  ``rests_until``: the same after a move that has found nothing.
    ``began``: when the last move began.  ``open``: whether a move may find messages.
    """

    since: float
    delay: float
    filters: frozenset[str]
    demand: Hashable
    not_before: float = -math.inf
    rests_until: float = -math.inf
    began: float = -math.inf
    open: bool = False

    @property
    def due(self) -> float:
        return max(self.since + self.delay, self.not_before, self.rests_until) if self.open else math.inf


class RedistributionPlan:
    """The queues whose messages are moved to other nodes, and the moment for each."""

    def __init__(self) -> None:
        # In the order of their turns.
        self._waiting: dict[str, _Waiting] = {}

    def see(self, name: str, state: StrandedQueue | None, now: float) -> bool:
        """Compare the state of a queue with the known one; None: the queue keeps its messages.  Return whether a queue
        may be due earlier than before.

        The delay begins when the state begins, and anew when the delay is another one, or when a filter has gone: only
        since then has nobody here taken what it took.  Another demand ends the rest after a move that found nothing.
        """
        if state is None:
            self._waiting.pop(name, None)
            return False
        known = self._waiting.get(name)
        if known is None or known.delay != state.delay or not known.filters <= state.filters:
            known = self._waiting[name] = _Waiting(now, state.delay, state.filters, state.demand)
        known.filters = state.filters
        was, known.open = known.open, state.messages > 0
        if known.demand != state.demand:
            # What a move that is under way has passed may be wanted now.
            known.demand, known.rests_until, known.began, was = state.demand, -math.inf, -math.inf, False
        return known.open and not was

    def next_s(self, now: float) -> float:
        """Return the seconds until a queue is due; 0.0: one is due now; ``inf``: none is."""
        return max(0.0, min((one.due for one in self._waiting.values()), default=math.inf) - now)

    def due(self, now: float) -> list[str]:
        """Return the queues that are due, whose turn was longest ago first."""
        return [name for name, one in self._waiting.items() if one.due <= now]

    def is_due(self, name: str, now: float) -> bool:
        """Whether a queue is due."""
        known = self._waiting.get(name)
        return known is not None and known.due <= now

    def begins(self, name: str, now: float) -> None:
        """Begin a move: a state that is seen from now on opens the queue again."""
        known = self._waiting.pop(name)
        known.open, known.began = False, now
        self._waiting[name] = known

    def moved(self, name: str, messages: int, now: float) -> None:
        """End a move: a full one may have left messages behind it, and after one that has found nothing the queue rests
        for as long as that costs little."""
        known = self._waiting.get(name)
        if known is None:
            return
        if messages >= STEP:
            known.open = True
        elif not messages and known.began >= known.since:
            known.rests_until = now + REST * (now - known.began)

    def failed(self, name: str, now: float) -> None:
        """End a move that has failed: the queue is tried again after a pause."""
        known = self._waiting.get(name)
        if known is not None:
            known.open = True
            known.not_before = now + PAUSE_S
