"""Tools for tests: a memory network, a simulated disk, a movable clock, the simulator, and conformance suites.

``MovableClock`` lets a test of a broker wait an hour in no time.  ``MemoryNetwork`` and ``SimDisk`` take the place of
the real network and the real disk, and fail when a test tells them to.  ``simulate`` runs brokers and clients on
simulated nodes: one seed decides every order, delay and fault of the run.  ``MemoryRole`` lets brokers of one test
compete for the place of the active one, ``MemoryBroadcast`` carries announcements between them, ``MemoryDatagrams``
takes the place of UDP, and ``MemorySink`` is a partner who has the records of a journal.  ``check_admission``,
``check_disk``, ``check_endpoint``,
``check_ha_policy``, ``check_network``, ``check_replication_sink``, ``check_stream``, ``check_target_policy``,
``check_threads`` and ``check_topology_source`` say whether a part of your own keeps the contract of ``meshq.abc``.
"""

from meshq.testing._broadcast import MemoryBroadcast
from meshq.testing._clock import SimEntropy, SimWallClock
from meshq.testing._datagrams import MemoryDatagrams
from meshq.testing._disk import SimDisk
from meshq.testing._disk_faults import DiskCall, DiskFaults, DiskOperation, SimulatedCrash
from meshq.testing._ha import MemoryHAPolicy, MemoryRole
from meshq.testing._movable_clock import MovableClock
from meshq.testing._network import MemoryNetwork
from meshq.testing._network_link import NetworkSettings
from meshq.testing._node import SimNode
from meshq.testing._replication import MemorySink
from meshq.testing._simulation import (
    DeadlockError,
    OvertimeError,
    Simulation,
    SimulationError,
    SimulationResult,
    SpinError,
    simulate,
)
from meshq.testing._swarm import Swarm
from meshq.testing._threads import InlineThreads
from meshq.testing._tripwires import TripwireError
from meshq.testing.conformance._admission import ADMISSION_CHECKS, check_admission
from meshq.testing.conformance._assertions import NonconformanceError
from meshq.testing.conformance._balancing import POLICY_CHECKS, check_policy
from meshq.testing.conformance._broadcast import ENDPOINT_CHECKS, EndpointPlace, check_endpoint
from meshq.testing.conformance._disk import DISK_CHECKS, check_disk
from meshq.testing.conformance._ha import HA_POLICY_CHECKS, MakePolicies, check_ha_policy
from meshq.testing.conformance._network import (
    NETWORK_CHECKS,
    MakeNetworkSides,
    NetworkCheck,
    NetworkSides,
    check_network,
)
from meshq.testing.conformance._replication import (
    REPLICATION_SINK_CHECKS,
    MakeSink,
    ReadBatches,
    check_replication_sink,
)
from meshq.testing.conformance._stream import STREAM_CHECKS, check_stream
from meshq.testing.conformance._targets import (
    TARGET_POLICY_CHECKS,
    TOPOLOGY_SOURCE_CHECKS,
    check_target_policy,
    check_topology_source,
)
from meshq.testing.conformance._threads import THREADS_CHECKS, check_threads

__all__ = [
    "ADMISSION_CHECKS",
    "DISK_CHECKS",
    "ENDPOINT_CHECKS",
    "HA_POLICY_CHECKS",
    "NETWORK_CHECKS",
    "POLICY_CHECKS",
    "REPLICATION_SINK_CHECKS",
    "STREAM_CHECKS",
    "TARGET_POLICY_CHECKS",
    "THREADS_CHECKS",
    "TOPOLOGY_SOURCE_CHECKS",
    "DeadlockError",
    "DiskCall",
    "DiskFaults",
    "DiskOperation",
    "EndpointPlace",
    "InlineThreads",
    "MakeNetworkSides",
    "MakePolicies",
    "MakeSink",
    "MemoryBroadcast",
    "MemoryDatagrams",
    "MemoryHAPolicy",
    "MemoryNetwork",
    "MemoryRole",
    "MemorySink",
    "MovableClock",
    "NetworkCheck",
    "NetworkSettings",
    "NetworkSides",
    "NonconformanceError",
    "OvertimeError",
    "ReadBatches",
    "SimDisk",
    "SimEntropy",
    "SimNode",
    "SimWallClock",
    "SimulatedCrash",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "SpinError",
    "Swarm",
    "TripwireError",
    "check_admission",
    "check_disk",
    "check_endpoint",
    "check_ha_policy",
    "check_network",
    "check_policy",
    "check_replication_sink",
    "check_stream",
    "check_target_policy",
    "check_threads",
    "check_topology_source",
    "simulate",
]
