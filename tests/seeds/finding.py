"""Whether a simulation finds a mistake that was planted for one test."""

from __future__ import annotations

from collections.abc import Callable

from meshq.testing import SimulationResult
from qa.ha.clients import PairError
from tests.known_seeds import caught_by, caught_first


def find_mistake(run: Callable[[int], SimulationResult], seeds: int, checkers: tuple[str, ...]) -> None:
    """Run seeds, the one first that found it last, until one breaks a promise that these checkers judge."""
    for seed in caught_first(range(seeds)):
        failure = run(seed).failure
        if isinstance(failure, PairError):
            caught_by(seed)
            assert str(failure).startswith(checkers)
            return
    raise AssertionError(f"not found in {seeds} seeds")
