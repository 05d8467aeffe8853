"""Transactions: work that waits until its client says that it counts, all of it or nothing."""

from meshq.broker.transactions._restoring import Restoring
from meshq.broker.transactions._transacting import Transacting
from meshq.broker.transactions._transactions import Transactions

__all__ = ["Restoring", "Transacting", "Transactions"]
