"""One node put together: the public broker."""

from meshq.node._broker import Broker
from meshq.node._statistics import BrokerStatistics

__all__ = ["Broker", "BrokerStatistics"]
