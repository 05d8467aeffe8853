"""Tools for tests: a simulated disk, network, clock and scheduler, and the simulator made of them."""

from meshq.testing._disk import SimDisk
from meshq.testing._disk_faults import SimulatedCrash
from meshq.testing._movable_clock import MovableClock
from meshq.testing._node import SimNode
from meshq.testing._simulation import Simulation, SimulationError, SimulationResult, simulate

__all__ = [
    "MovableClock",
    "SimDisk",
    "SimNode",
    "SimulatedCrash",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "simulate",
]
