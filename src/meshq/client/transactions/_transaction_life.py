"""The life cycle of a client's transaction, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``prepare``, ``commit`` and ``roll_back`` are the broker's answers.  A prepared transaction may be decided by two
#: tasks at a time: both are answered alike.
TRANSACTION_TRANSITIONS: Final[Transitions] = {
    "new": {"begin": "active"},
    "active": {"prepare": "prepared", "commit": "committed", "roll_back": "rolled back"},
    "prepared": {"commit": "committed", "roll_back": "rolled back"},
    "committed": {"commit": "committed"},
    "rolled back": {"roll_back": "rolled back"},
}


def new_life() -> LifeCycle:
    """The life of a transaction that has not begun."""
    return LifeCycle("transaction", TRANSACTION_TRANSITIONS)
