"""The latest decisions about prepared transactions, for clients that were cut off and ask again.

The answer about an unknown transaction is remembered, too: a client must not hear first one answer, then the other.
"""

from __future__ import annotations

from typing import NamedTuple

from meshq import limits


class Decision(NamedTuple):
    """The decision about a transaction.  ``position``: the position of its record.  ``where``: the URL of the node that
    has taken it over, where it is decided; empty: it was decided here."""

    user: str
    committed: bool
    position: int
    where: str = ""


class Decisions:
    """Decisions by xid, the oldest first; who has most has its oldest forgotten."""

    __slots__ = ("_by_user", "_by_xid")

    def __init__(self) -> None:
        self._by_xid: dict[bytes, Decision] = {}
        # The xids of each user, the oldest first; an ordered set.
        self._by_user: dict[str, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._by_xid)

    def get(self, xid: bytes) -> Decision | None:
        """Return the decision about a transaction; None: it is not known."""
        return self._by_xid.get(xid)

    def add(self, xid: bytes, decision: Decision) -> list[int]:
        """Remember a decision; return the positions of decisions that are forgotten for it."""
        gone = self.forget(xid)
        self._by_xid[xid] = decision
        self._by_user.setdefault(decision.user, {})[xid] = None
        while len(self._by_xid) > limits.DECISIONS_REMEMBERED:
            most = max(self._by_user.values(), key=lambda xids: len(xids))
            gone += self.forget(next(iter(most)))
        return gone

    def forget(self, xid: bytes) -> list[int]:
        """The xid is used again, or its turn has come; returns the position of its record, if it has one."""
        decision = self._by_xid.pop(xid, None)
        if decision is None:
            return []
        xids = self._by_user[decision.user]
        del xids[xid]
        if not xids:
            del self._by_user[decision.user]
        return [decision.position] if decision.position else []
