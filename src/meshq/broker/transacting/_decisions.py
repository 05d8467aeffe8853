"""What was decided of transactions that had been prepared: the last of it, for whoever was cut off and asks again."""

from __future__ import annotations

from typing import NamedTuple

from meshq import limits


class Decision(NamedTuple):
    """What became of one.  ``position``: where the journal says so."""

    user: str
    committed: bool
    position: int


class Decisions:
    """Decisions by xid, the oldest first."""

    __slots__ = ("_by_xid",)

    def __init__(self) -> None:
        self._by_xid: dict[bytes, Decision] = {}

    def __len__(self) -> int:
        return len(self._by_xid)

    def get(self, xid: bytes) -> Decision | None:
        """What was decided; None: it is not known."""
        return self._by_xid.get(xid)

    def add(self, xid: bytes, decision: Decision) -> list[int]:
        """Remember one; returns the positions of those that are forgotten for it."""
        gone = self.forget(xid)
        self._by_xid[xid] = decision
        while len(self._by_xid) > limits.DECISIONS_REMEMBERED:
            gone += self.forget(next(iter(self._by_xid)))
        return gone

    def forget(self, xid: bytes) -> list[int]:
        """The xid is used again, or its turn has come; returns the position of its record, if it has one."""
        decision = self._by_xid.pop(xid, None)
        return [decision.position] if decision is not None and decision.position else []
