"""Networks of brokers: messages go to demand at other brokers, hop by hop."""

from meshq.network._demand_machine import NetworkSubscription
from meshq.network._destinations import Destinations, Queues, Topics
from meshq.network._network_connector import NetworkConnector
from meshq.network._settings import NetworkSettings

__all__ = ["Destinations", "NetworkConnector", "NetworkSettings", "NetworkSubscription", "Queues", "Topics"]
