"""The words of a node that does not serve to a node that asks."""

from __future__ import annotations

from typing import Any

from meshq.abc import ReplicationStart
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication.meeting._standpoints import ACTED, CLAIMED, IN_SYNC, PRIMARY
from meshq.wire import Log


def waiting(standing: Standing, *, primary: bool, **who: Any) -> Log:
    """Return the word of a node that waits, with its standpoint."""
    flags = ACTED * standing.acted | IN_SYNC * standing.in_sync | PRIMARY * primary
    return Log(kind="waiting", epoch=standing.epoch, activation=standing.activation, flags=flags, **who)


def accepting(start: ReplicationStart, *, primary: bool, epoch: int, activation: int, place: str, **who: Any) -> Log:
    """Return the word of a node that serves, in an epoch of its journal."""
    flags = PRIMARY if primary else 0
    about: dict[str, Any] = {**who, "node_id": bytes(start.node_id), "journal_id": start.journal_id, "place": place}
    return Log(kind="accepted", epoch=epoch, activation=activation, flags=flags, **about)


def busy(**who: Any) -> Log:
    """Return the word of a node that is about to act, or is about to stop: no other node is to act."""
    return Log(kind="waiting", epoch=CLAIMED, flags=ACTED, **who)
