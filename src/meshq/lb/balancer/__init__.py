"""Balancers at a broker: they probe the brokers of a pool, and say to which of them each client goes."""

from meshq.lb.balancer._broker_balancer import BrokerBalancer
from meshq.lb.balancer._settings import ClusterPool, DiscoveryPool, Pool, StaticPool

__all__ = ["BrokerBalancer", "ClusterPool", "DiscoveryPool", "Pool", "StaticPool"]
