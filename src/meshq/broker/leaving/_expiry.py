"""Messages whose time to live is over: they leave their queue, for the expiry address if there is one.

A message that a consumer holds stays with it; if it comes back too late, it goes then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from meshq.broker.leaving._moving import Mover
from meshq.broker.queue._consumer_state import Span
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._rows import pieces
from meshq.broker.queue._run import UNHELD, QueueRun
from meshq.broker.queue._timers import Timers

#: On a full disk nothing can be moved: try again after so many ms.
RETRY_MS: Final = 1_000


class Expirer:
    """Takes out what has expired."""

    def __init__(self, mover: Mover, timers: Timers, now_ms: Callable[[], int]) -> None:
        self._mover = mover
        self._timers = timers
        self._now_ms = now_ms
        #: Gets the content of a run, and calls when it is here.
        self.fetch: Callable[[Queue, QueueRun, Callable[[], None]], None] = _nobody

    def watch(self, queue: Queue, view: QueueRun) -> None:
        """A run is visible, or messages of it came back: see to those that expire."""
        traits = view.run.traits
        if traits is None or traits.expires is None or queue.forwards:
            return
        queue.expires = True
        states = view.states
        times = [time for row, time in enumerate(traits.expires) if time and states[row] in UNHELD]
        if times:
            self._arm(queue, view, min(times))

    def _arm(self, queue: Queue, view: QueueRun, due_ms: int) -> None:
        if not view.watched or due_ms < view.watched:
            view.watched = due_ms
            self._timers.at(due_ms, view, partial(self._due, queue, view, due_ms))

    def _due(self, queue: Queue, view: QueueRun, due_ms: int) -> None:
        if view.watched != due_ms:
            # Another one was needed earlier, and looks after the rest.
            return
        view.watched = 0
        expires = view.run.traits.expires if view.run.traits is not None else None
        if expires is None:
            return
        now, states = self._now_ms(), view.states
        over = [row for row, time in enumerate(expires) if 0 < time <= now and states[row] in UNHELD]
        if over and view.run.paged and queue.target_of("expired") is not None:
            # It goes as soon as it is here; until then nobody can get it.
            view.watched = due_ms
            self.fetch(queue, view, partial(self._due, queue, view, due_ms))
            return
        spans = [Span(view, rows.start, rows.stop, rows.step) for rows in pieces(over)]
        left = self._mover.move(queue, spans, queue.target_of("expired"), "expired")
        if left:
            self._arm(queue, view, now + RETRY_MS)
        elif view.live:
            self.watch(queue, view)


def _nobody(queue: Queue, view: QueueRun, then: Callable[[], None]) -> None:
    """For a callback that nobody has set."""
