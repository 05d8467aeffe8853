"""The run of a scenario on a network in memory, with no log of the faults that it causes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from meshq.testing import MemoryNetwork, Simulation, SimulationResult, run_seed


def run_scenario(
    seed: int, scenario: Callable[[Simulation], Awaitable[Any]], *, duration_s: float, limit_s: float
) -> SimulationResult:
    """Run a scenario with a seed; the result has the failure, if there was one.

    ``duration_s``: for so long faults happen.  ``limit_s``: simulated seconds that it may take.
    """
    log = logging.getLogger("meshq")
    before = log.level
    # Faults that are caused on purpose are no news.
    log.setLevel(logging.CRITICAL)
    try:
        return run_seed(
            seed,
            scenario,
            duration_s=duration_s,
            limit_s=limit_s,
            network=lambda simulation: MemoryNetwork(simulation.swarm.rng("network")),
        )
    finally:
        log.setLevel(before)
