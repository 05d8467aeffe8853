"""Transactions: work that waits until its client says that it counts, all of it or nothing."""

from meshq.broker.transactions._transaction_manager import TransactionManager
from meshq.broker.transactions._transaction_recovery import TransactionRecovery

__all__ = ["TransactionManager", "TransactionRecovery"]
