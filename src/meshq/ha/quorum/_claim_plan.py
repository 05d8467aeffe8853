"""Decides whether a node may claim a node id, by the record of the quorum and the counter of the store."""

from __future__ import annotations

import hashlib
from typing import Final

import attrs

from meshq.abc import QuorumRecord
from meshq.errors import SettingsError
from meshq.ids import IDENTITY_BYTES

_LABEL: Final = b"meshq coordination\0"
COORDINATION_CHARACTERS_MAX: Final = 250


def node_id_of(coordination_id: str) -> bytes:
    """Return the node id that all peers with one ``coordination_id`` share.

    Raises:
        SettingsError: the text is empty or too long.
    """
    if type(coordination_id) is not str or not 0 < len(coordination_id) <= COORDINATION_CHARACTERS_MAX:
        allowed = f"a text of 1 to {COORDINATION_CHARACTERS_MAX} characters"
        raise SettingsError("coordination_id", coordination_id, allowed)
    try:
        text = coordination_id.encode()
    except UnicodeEncodeError as error:
        raise SettingsError("coordination_id", ascii(coordination_id), "a text that UTF-8 can say") from error
    return hashlib.sha256(_LABEL + text).digest()[:IDENTITY_BYTES]


@attrs.frozen(kw_only=True)
class Claim:
    """A claim that may be made, in three steps: ``begun`` is stored at the quorum, unless it is None, as the claim
    before was interrupted there; then ``activation`` is stored durably with the node's own store; then ``done`` at the
    quorum.
    """

    begun: QuorumRecord | None
    activation: int
    done: QuorumRecord


@attrs.frozen(kw_only=True)
class NoClaim:
    """The reason for which a node does not claim: ``stale``, ``not_in_sync`` or ``unknown``, and a sentence."""

    reason: str
    text: str


def decide_claim(record: QuorumRecord, *, name: str, activation: int, epoch: int = 0) -> Claim | NoClaim:
    """Decide whether a node that holds the lock may serve; ``activation``: the counter in the node's own store.

    ``epoch``: the latest one that the node knows of its node id.
    """
    if record == QuorumRecord() and activation:
        text = f"the quorum knows nothing of this node id, and the store of {name} has the counter {activation}"
        return NoClaim(reason="unknown", text=text)
    if record.in_sync and name not in record.in_sync:
        text = f"{name} is not among the nodes in sync: {', '.join(record.in_sync)}"
        return NoClaim(reason="not_in_sync", text=text)
    if activation > record.claimed:
        text = f"the store of {name} has the counter {activation}, and the quorum knows none above {record.claimed}"
        return NoClaim(reason="unknown", text=text)
    if epoch > record.epoch:
        text = f"{name} knows of epoch {epoch} of its node id, and the quorum of none above {record.epoch}"
        return NoClaim(reason="unknown", text=text)
    if activation < record.sequence:
        text = f"the store of {name} has the counter {activation}, and the newest one has {record.sequence}"
        return NoClaim(reason="stale", text=text)
    return _claim(record, name)


def _claim(record: QuorumRecord, name: str) -> Claim:
    # A claim that was interrupted is completed: its counter is not raised again.
    interrupted = record.claimed > record.sequence
    activation = record.claimed if interrupted else record.claimed + 1
    begun = None if interrupted else attrs.evolve(record, claimed=activation)
    epoch = record.epoch + 1
    done = QuorumRecord(epoch=epoch, sequence=activation, claimed=activation, in_sync=(name,), holder=name)
    return Claim(begun=begun, activation=activation, done=done)


def decide_ordered(record: QuorumRecord, *, name: str, activation: int, epoch: int) -> Claim:
    """The steps by which a node serves with a store that an operator has claimed.

    ``activation``: the counter in its store.  ``epoch``: the one that it begins at least.
    """
    activation = max(record.claimed, activation) + 1
    epoch = max(record.epoch + 1, epoch)
    done = QuorumRecord(epoch=epoch, sequence=activation, claimed=activation, in_sync=(name,), holder=name)
    return Claim(begun=attrs.evolve(record, claimed=activation), activation=activation, done=done)


def with_replica(record: QuorumRecord, name: str) -> QuorumRecord:
    """The record once a replica has come to be in sync; its store has the counter ``sequence`` already."""
    return record if name in record.in_sync else attrs.evolve(record, in_sync=(*record.in_sync, name))


def without_replica(record: QuorumRecord, name: str) -> Claim:
    """The steps by which the node that serves goes on without a replica: no other copy counts as the newest then.

    If it has begun that already, and was interrupted, the counter is not raised again.
    """
    interrupted = record.claimed > record.sequence
    activation = record.claimed if interrupted else record.claimed + 1
    left = tuple(one for one in record.in_sync if one != name)
    done = attrs.evolve(record, sequence=activation, claimed=activation, in_sync=left)
    begun = None if interrupted else attrs.evolve(record, claimed=activation)
    return Claim(begun=begun, activation=activation, done=done)
