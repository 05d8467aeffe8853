"""Transactions: work that waits until its client says that it counts, all of it or nothing."""

from meshq.broker.transactions._forwarded_runs import ForwardedRuns
from meshq.broker.transactions._prepared import ServerPreparedTransaction
from meshq.broker.transactions._transaction_manager import TransactionManager
from meshq.broker.transactions._transaction_recovery import TransactionRecovery
from meshq.broker.transactions._transaction_transfer import PREPARED_FEATURE, TransactionTransfer, hold_views

__all__ = [
    "PREPARED_FEATURE",
    "ForwardedRuns",
    "ServerPreparedTransaction",
    "TransactionManager",
    "TransactionRecovery",
    "TransactionTransfer",
    "hold_views",
]
