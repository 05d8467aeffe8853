"""The time, the chance, the story and the verdict of one run of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import outcome

from meshq.testing import Simulation
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError

#: How much of the story stands in a failure.
STORY_LINES_MAX = 120


class Clockwork:
    """The clock, generators and story of a run."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.swarm = simulation.swarm
        self._seed = simulation.seed
        #: (time, what happened).
        self.notes: list[tuple[float, str]] = []
        #: Rises with each event: what is older than what.
        self.step: int = 0
        #: Called after each event.
        self.after: Callable[[], object] | None = None
        #: Whether links and disks are quick and nothing is lost.
        self.calm: bool = False

    def rng(self, purpose: str) -> Random:
        """A generator of its own for one purpose."""
        return self.swarm.rng(f"grouping/{purpose}")

    @property
    def now(self) -> float:
        """The simulated seconds so far."""
        return self._simulation.clock.now

    def at(self, delay_s: float, event: Callable[[], object]) -> None:
        """Have an event happen."""
        self._simulation.clock.call_at(self.now + delay_s, partial(self._happen, event))

    def _happen(self, event: Callable[[], object]) -> None:
        self.step += 1
        # An error in a device would end the loop, not the run.
        result = outcome.capture(self._one, event)
        if isinstance(result, outcome.Error):
            self._simulation.fail(result.error)

    def _one(self, event: Callable[[], object]) -> None:
        event()
        if self.after is not None:
            self.after()

    def note(self, what: str) -> None:
        """Add to the story."""
        self.notes.append((self.now, what))

    def count(self, kind: str, number: int = 1) -> None:
        """Count a fault, or something that is to be seen."""
        self.swarm.count(kind, number)

    def violated(self, checker: str, what: str) -> None:
        """Say that a promise is broken, which ends the run."""
        story = "\n".join(f"{at:10.4f} {text}" for at, text in self.notes[-STORY_LINES_MAX:])
        error = HistoryError([Violation(checker, f"at {self.now:.3f} s: {what}")], story)
        self._simulation.fail(error)
        raise error
