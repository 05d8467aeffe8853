"""Tools for tests: a simulated disk, network, clock and scheduler, and the simulator made of them."""

from meshq.testing._disk import SimDisk
from meshq.testing._disk_faults import SimulatedCrash

__all__ = ["SimDisk", "SimulatedCrash"]
