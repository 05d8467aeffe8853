"""Transactions: work that waits until its client says that it counts, all of it or nothing."""

from meshq.broker.transactions._session_transactions import Transacting
from meshq.broker.transactions._transaction_manager import Transactions
from meshq.broker.transactions._transaction_recovery import Restoring

__all__ = ["Restoring", "Transacting", "Transactions"]
