"""The standpoints of nodes that do not serve, and who an answer comes from."""

from __future__ import annotations

from typing import Final

from meshq.ha.replication._replica_machine import EPOCHS_MAX
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication.meeting._meeting_plan import Standpoint, gives_way
from meshq.wire import Log, Replicate

#: What a node that waits says of itself.
ACTED, IN_SYNC, PRIMARY = 1, 2, 4
#: Stands for the epoch of a node that may take the role at any moment; no epoch reaches it.
CLAIMED: Final = EPOCHS_MAX


def standpoint(standing: Standing, *, primary: bool) -> Standpoint:
    """Return the standpoint of a node from its memory."""
    return Standpoint(epoch=standing.epoch, acted=standing.acted, in_sync=standing.in_sync, primary=primary)


def standpoint_of(answer: Log) -> Standpoint:
    """Return the standpoint of another node from its answer."""
    flags = answer.flags
    return Standpoint(
        epoch=answer.epoch, acted=bool(flags & ACTED), in_sync=bool(flags & IN_SYNC), primary=bool(flags & PRIMARY)
    )


def order_of(answer: Log) -> tuple[int, bool, bytes]:
    """Return the place of a node in the order of serving nodes, from its answer."""
    return (answer.epoch, not answer.flags & PRIMARY, answer.instance)


def supersedes(answer: Log, own: tuple[int, bool, bytes], node_id: bytes) -> bool:
    """Whether an answer tells a node that serves that the other one goes first.  ``own``: its place in the order.

    One that waits and has served in a later term has what was confirmed there, or has handed everything over.
    """
    if answer.node_id != node_id:
        return False
    if answer.kind == "accepted":
        return gives_way(own, order_of(answer))
    return own[0] < answer.epoch < CLAIMED


def serves_on(answer: Log, node_id: bytes, journal_id: bytes, epoch: int) -> bool:
    """Whether the node that serves, as an answer tells, is the one that was followed, with its store.

    ``node_id``, ``journal_id``, ``epoch``: of that one.  A copy has the journal id of its store, and each term that a
    node remembers is followed by a later one.  So who serves another store in no later term has lost its memory.
    """
    return answer.node_id == node_id and (answer.journal_id == journal_id or answer.epoch > epoch)


def goes_before(wanted: Replicate, own: tuple[int, bool, bytes]) -> bool:
    """Whether a node that asks one that serves knows of a later term, or serves in one that goes first.

    ``own``: the place of the node that is asked in the order of serving nodes.
    """
    if wanted.epoch >= CLAIMED:
        return False
    other = (wanted.epoch, not wanted.primary, wanted.instance)
    return wanted.epoch > own[0] or (wanted.acts and gives_way(own, other))


def is_stranger(answer: Log, own: Replicate) -> bool:
    """Whether an answer comes from a node of another pair, or from the node that has asked."""
    if answer.instance and answer.instance == own.instance:
        return True
    if answer.node_id and own.node_id:
        return answer.node_id != own.node_id
    return bool(answer.group and own.group) and answer.group != own.group
