"""Tools for tests: a cluster, a network and a disk in memory, a movable clock, the simulator, and conformance suites.

The fixtures of pytest stand in ``meshq.testing.plugin``; ``Cluster`` is what ``meshq_cluster`` makes.
Every name is loaded when it is first used: the plugin loads neither trio nor the broker.

``MovableClock`` lets a test of a broker wait an hour in no time.  ``MemoryNetwork`` and ``SimDisk`` take the place of
the real network and the real disk, and fail when a test tells them to.  ``run_seed`` runs brokers and clients on
simulated nodes: one seed decides every order, delay and fault of the run.  ``MemoryRole`` lets brokers of one test
compete for the place of the active one, ``MemoryBroadcast`` carries announcements between them, ``MemoryDatagrams``
takes the place of UDP, ``MemoryQuorum`` decides which node serves, ``MemorySink`` is a partner who has the records
of a journal, and ``MemoryJournal`` a journal without files.  ``check_admission``, ``check_disk``, ``check_endpoint``,
``check_ha_policy``, ``check_journal``, ``check_network``, ``check_quorum``, ``check_replication_sink``,
``check_stream``, ``check_target_policy``, ``check_threads`` and ``check_topology_source`` say whether a part of your
own keeps its contract, which stands in ``meshq.abc`` or is that of a class of ours.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from meshq.testing._broadcast import MemoryBroadcast as MemoryBroadcast
    from meshq.testing._clock import SimEntropy as SimEntropy
    from meshq.testing._clock import SimWallClock as SimWallClock
    from meshq.testing._datagrams import MemoryDatagrams as MemoryDatagrams
    from meshq.testing._ha import MemoryHAPolicy as MemoryHAPolicy
    from meshq.testing._ha import MemoryRole as MemoryRole
    from meshq.testing._journal import MemoryJournal as MemoryJournal
    from meshq.testing._journal import MemoryJournalPlace as MemoryJournalPlace
    from meshq.testing._movable_clock import MovableClock as MovableClock
    from meshq.testing._network import MemoryNetwork as MemoryNetwork
    from meshq.testing._network_link import NetworkSettings as NetworkSettings
    from meshq.testing._node import SimNode as SimNode
    from meshq.testing._quorum import MemoryQuorum as MemoryQuorum
    from meshq.testing._replication import MemorySink as MemorySink
    from meshq.testing._simulation import DeadlockError as DeadlockError
    from meshq.testing._simulation import OvertimeError as OvertimeError
    from meshq.testing._simulation import Simulation as Simulation
    from meshq.testing._simulation import SimulationError as SimulationError
    from meshq.testing._simulation import SimulationResult as SimulationResult
    from meshq.testing._simulation import SpinError as SpinError
    from meshq.testing._simulation import run_seed as run_seed
    from meshq.testing._swarm import Swarm as Swarm
    from meshq.testing._threads import InlineThreads as InlineThreads
    from meshq.testing._tripwires import TripwireError as TripwireError
    from meshq.testing.conformance._admission import ADMISSION_CHECKS as ADMISSION_CHECKS
    from meshq.testing.conformance._admission import check_admission as check_admission
    from meshq.testing.conformance._assertions import NonconformanceError as NonconformanceError
    from meshq.testing.conformance._balancing import POLICY_CHECKS as POLICY_CHECKS
    from meshq.testing.conformance._balancing import check_policy as check_policy
    from meshq.testing.conformance._broadcast import ENDPOINT_CHECKS as ENDPOINT_CHECKS
    from meshq.testing.conformance._broadcast import EndpointPlace as EndpointPlace
    from meshq.testing.conformance._broadcast import check_endpoint as check_endpoint
    from meshq.testing.conformance._disk import DISK_CHECKS as DISK_CHECKS
    from meshq.testing.conformance._disk import check_disk as check_disk
    from meshq.testing.conformance._ha import HA_POLICY_CHECKS as HA_POLICY_CHECKS
    from meshq.testing.conformance._ha import MakePolicies as MakePolicies
    from meshq.testing.conformance._ha import check_ha_policy as check_ha_policy
    from meshq.testing.conformance._journal import JOURNAL_CHECKS as JOURNAL_CHECKS
    from meshq.testing.conformance._journal import JournalPlace as JournalPlace
    from meshq.testing.conformance._journal import PlainJournal as PlainJournal
    from meshq.testing.conformance._journal import StoredRecord as StoredRecord
    from meshq.testing.conformance._journal import check_journal as check_journal
    from meshq.testing.conformance._network import NETWORK_CHECKS as NETWORK_CHECKS
    from meshq.testing.conformance._network import MakeNetworkSides as MakeNetworkSides
    from meshq.testing.conformance._network import NetworkCheck as NetworkCheck
    from meshq.testing.conformance._network import NetworkSides as NetworkSides
    from meshq.testing.conformance._network import check_network as check_network
    from meshq.testing.conformance._quorum import QUORUM_CHECKS as QUORUM_CHECKS
    from meshq.testing.conformance._quorum import MakeQuorum as MakeQuorum
    from meshq.testing.conformance._quorum import check_quorum as check_quorum
    from meshq.testing.conformance._replication import REPLICATION_SINK_CHECKS as REPLICATION_SINK_CHECKS
    from meshq.testing.conformance._replication import MakeSink as MakeSink
    from meshq.testing.conformance._replication import ReadBatches as ReadBatches
    from meshq.testing.conformance._replication import check_replication_sink as check_replication_sink
    from meshq.testing.conformance._stream import STREAM_CHECKS as STREAM_CHECKS
    from meshq.testing.conformance._stream import check_stream as check_stream
    from meshq.testing.conformance._targets import TARGET_POLICY_CHECKS as TARGET_POLICY_CHECKS
    from meshq.testing.conformance._targets import TOPOLOGY_SOURCE_CHECKS as TOPOLOGY_SOURCE_CHECKS
    from meshq.testing.conformance._targets import check_target_policy as check_target_policy
    from meshq.testing.conformance._targets import check_topology_source as check_topology_source
    from meshq.testing.conformance._threads import THREADS_CHECKS as THREADS_CHECKS
    from meshq.testing.conformance._threads import check_threads as check_threads
    from meshq.testing.disk._disk import SimDisk as SimDisk
    from meshq.testing.disk._faults import DiskCall as DiskCall
    from meshq.testing.disk._faults import DiskFaults as DiskFaults
    from meshq.testing.disk._faults import DiskOperation as DiskOperation
    from meshq.testing.disk._faults import SimulatedCrash as SimulatedCrash
    from meshq.testing.history._end import HistoryError as HistoryError
    from meshq.testing.history._judged import ClusterHistory as ClusterHistory
    from meshq.testing.kit._certificates import Certificates as Certificates
    from meshq.testing.kit._cluster import Cluster as Cluster
    from meshq.testing.kit._network_face import SimulatedNetwork as SimulatedNetwork
    from meshq.testing.kit._server import ServerInThread as ServerInThread
    from meshq.testing.kit._spawned_task import SpawnedTask as SpawnedTask
    from meshq.testing.processes._process_cluster import ProcessCluster as ProcessCluster
    from meshq.testing.scenario._fault import Fault as Fault
    from meshq.testing.scenario._simulate import EmptySimulationWarning as EmptySimulationWarning
    from meshq.testing.scenario._simulate import SeedFailure as SeedFailure
    from meshq.testing.scenario._simulate import SimulationFailed as SimulationFailed
    from meshq.testing.scenario._simulate import SimulationReport as SimulationReport
    from meshq.testing.scenario._simulate import simulate as simulate
    from meshq.testing.scenario._simulated import simulated as simulated

#: Where each public name is defined.
_HOME: Final[dict[str, str]] = {
    "EmptySimulationWarning": "meshq.testing.scenario._simulate",
    "Fault": "meshq.testing.scenario._fault",
    "SeedFailure": "meshq.testing.scenario._simulate",
    "SimulationFailed": "meshq.testing.scenario._simulate",
    "SimulationReport": "meshq.testing.scenario._simulate",
    "simulate": "meshq.testing.scenario._simulate",
    "simulated": "meshq.testing.scenario._simulated",
    "ADMISSION_CHECKS": "meshq.testing.conformance._admission",
    "Certificates": "meshq.testing.kit._certificates",
    "Cluster": "meshq.testing.kit._cluster",
    "ProcessCluster": "meshq.testing.processes._process_cluster",
    "ServerInThread": "meshq.testing.kit._server",
    "SimulatedNetwork": "meshq.testing.kit._network_face",
    "DISK_CHECKS": "meshq.testing.conformance._disk",
    "DeadlockError": "meshq.testing._simulation",
    "DiskCall": "meshq.testing.disk._faults",
    "DiskFaults": "meshq.testing.disk._faults",
    "DiskOperation": "meshq.testing.disk._faults",
    "ENDPOINT_CHECKS": "meshq.testing.conformance._broadcast",
    "EndpointPlace": "meshq.testing.conformance._broadcast",
    "HA_POLICY_CHECKS": "meshq.testing.conformance._ha",
    "ClusterHistory": "meshq.testing.history._judged",
    "HistoryError": "meshq.testing.history._end",
    "InlineThreads": "meshq.testing._threads",
    "JOURNAL_CHECKS": "meshq.testing.conformance._journal",
    "JournalPlace": "meshq.testing.conformance._journal",
    "MakeNetworkSides": "meshq.testing.conformance._network",
    "MakeQuorum": "meshq.testing.conformance._quorum",
    "MakePolicies": "meshq.testing.conformance._ha",
    "MakeSink": "meshq.testing.conformance._replication",
    "MemoryBroadcast": "meshq.testing._broadcast",
    "MemoryDatagrams": "meshq.testing._datagrams",
    "MemoryHAPolicy": "meshq.testing._ha",
    "MemoryJournal": "meshq.testing._journal",
    "MemoryJournalPlace": "meshq.testing._journal",
    "MemoryNetwork": "meshq.testing._network",
    "MemoryQuorum": "meshq.testing._quorum",
    "MemoryRole": "meshq.testing._ha",
    "MemorySink": "meshq.testing._replication",
    "MovableClock": "meshq.testing._movable_clock",
    "NETWORK_CHECKS": "meshq.testing.conformance._network",
    "NetworkCheck": "meshq.testing.conformance._network",
    "NetworkSettings": "meshq.testing._network_link",
    "NetworkSides": "meshq.testing.conformance._network",
    "NonconformanceError": "meshq.testing.conformance._assertions",
    "OvertimeError": "meshq.testing._simulation",
    "POLICY_CHECKS": "meshq.testing.conformance._balancing",
    "PlainJournal": "meshq.testing.conformance._journal",
    "REPLICATION_SINK_CHECKS": "meshq.testing.conformance._replication",
    "ReadBatches": "meshq.testing.conformance._replication",
    "STREAM_CHECKS": "meshq.testing.conformance._stream",
    "SimDisk": "meshq.testing.disk._disk",
    "SimEntropy": "meshq.testing._clock",
    "SimNode": "meshq.testing._node",
    "SimWallClock": "meshq.testing._clock",
    "SimulatedCrash": "meshq.testing.disk._faults",
    "Simulation": "meshq.testing._simulation",
    "SimulationError": "meshq.testing._simulation",
    "SimulationResult": "meshq.testing._simulation",
    "SpawnedTask": "meshq.testing.kit._spawned_task",
    "SpinError": "meshq.testing._simulation",
    "StoredRecord": "meshq.testing.conformance._journal",
    "Swarm": "meshq.testing._swarm",
    "TARGET_POLICY_CHECKS": "meshq.testing.conformance._targets",
    "THREADS_CHECKS": "meshq.testing.conformance._threads",
    "TOPOLOGY_SOURCE_CHECKS": "meshq.testing.conformance._targets",
    "TripwireError": "meshq.testing._tripwires",
    "check_admission": "meshq.testing.conformance._admission",
    "check_disk": "meshq.testing.conformance._disk",
    "check_endpoint": "meshq.testing.conformance._broadcast",
    "check_ha_policy": "meshq.testing.conformance._ha",
    "check_journal": "meshq.testing.conformance._journal",
    "check_quorum": "meshq.testing.conformance._quorum",
    "QUORUM_CHECKS": "meshq.testing.conformance._quorum",
    "check_network": "meshq.testing.conformance._network",
    "check_policy": "meshq.testing.conformance._balancing",
    "check_replication_sink": "meshq.testing.conformance._replication",
    "check_stream": "meshq.testing.conformance._stream",
    "check_target_policy": "meshq.testing.conformance._targets",
    "check_threads": "meshq.testing.conformance._threads",
    "check_topology_source": "meshq.testing.conformance._targets",
    "run_seed": "meshq.testing._simulation",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'meshq.testing' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
