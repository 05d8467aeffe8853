"""A node put together: the public broker."""

from meshq.node._broker import EVENTS_MAX, Broker
from meshq.node._broker_face import BrokerFace, watch
from meshq.node._broker_in_thread import BrokerInThread
from meshq.node._cluster_in_thread import ClusterConnectionInThread, ClusterFigures
from meshq.node._service_in_thread import (
    BalancerFigures,
    BrokerBalancerInThread,
    NetworkConnectorInThread,
    NetworkFigures,
    ServiceInThread,
)
from meshq.node.hosting._hosted_backup import HostedBackup
from meshq.node.terms._high_availability import HighAvailability, HighAvailabilityInThread, RoleFigures
from meshq.node.terms._replica_store import ReplicaStore, ReplicaStoreInThread
from meshq.statistics import BrokerStatistics

__all__ = [
    "EVENTS_MAX",
    "BalancerFigures",
    "Broker",
    "BrokerBalancerInThread",
    "BrokerFace",
    "BrokerInThread",
    "BrokerStatistics",
    "ClusterConnectionInThread",
    "ClusterFigures",
    "HighAvailability",
    "HighAvailabilityInThread",
    "HostedBackup",
    "NetworkConnectorInThread",
    "NetworkFigures",
    "ReplicaStore",
    "ReplicaStoreInThread",
    "RoleFigures",
    "ServiceInThread",
    "watch",
]
