"""One node put together: the public broker."""

from meshq.node._broker import EVENTS_MAX, Broker, watch
from meshq.node._hosted_cluster import ClusterConnectionInThread
from meshq.node._in_thread import BrokerInThread
from meshq.statistics import BrokerStatistics

__all__ = ["EVENTS_MAX", "Broker", "BrokerInThread", "BrokerStatistics", "ClusterConnectionInThread", "watch"]
