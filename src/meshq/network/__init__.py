"""Networks of brokers: messages go to demand at other brokers, hop by hop."""

from meshq.network._destinations import Queues, Topics

__all__ = ["Queues", "Topics"]
