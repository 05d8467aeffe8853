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
    """A claim that may be made, in three steps: ``begun`` is stored at the quorum, ``activation`` durably with the
    node's own store, and then ``done`` at the quorum.

    Each try has a counter of its own: no other disk has it, not even one that was in the machine before.
    """

    begun: QuorumRecord
    activation: int
    done: QuorumRecord


@attrs.frozen(kw_only=True)
class NoClaim:
    """The reason for which a node does not claim, and a sentence.

    ``stale``, ``not_in_sync``, ``unknown``, ``held``; ``void``: what an operator has ordered holds no more.
    """

    reason: str
    text: str


def decide_claim(
    record: QuorumRecord, *, name: str, activation: int, epoch: int = 0, against: int | None = None
) -> Claim | NoClaim:
    """Decide whether a node that holds the lock may serve; ``activation``: the counter in the node's own store.

    ``epoch``: the latest one that the node knows of its node id.  ``against``: an operator has claimed the store, which
    is to serve from ``epoch`` on whoever is in sync, as long as this is the counter of the newest copies; None: nobody
    has.
    """
    if against is not None:
        return _decide_ordered(record, name=name, activation=activation, epoch=epoch, against=against)
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
    done = QuorumRecord(epoch=record.epoch + 1, in_sync=(name,), holder=name)
    return _steps(record, done, counter=record.claimed + 1)


def _steps(record: QuorumRecord, done: QuorumRecord, *, counter: int) -> Claim:
    # A counter that an interrupted claim has named may be on a disk that comes back later, under any name.
    begun = attrs.evolve(record, claimed=counter)
    return Claim(begun=begun, activation=counter, done=attrs.evolve(done, sequence=counter, claimed=counter))


def _decide_ordered(record: QuorumRecord, *, name: str, activation: int, epoch: int, against: int) -> Claim | NoClaim:
    # The order says nothing about copies that came later.
    if record.sequence != against:
        text = f"the counter of the quorum was {against} when it was found, and is {record.sequence}"
        return NoClaim(reason="void", text=f"the mark of `meshq store claim` is void: {text}")
    done = QuorumRecord(epoch=max(record.epoch + 1, epoch), in_sync=(name,), holder=name)
    return _steps(record, done, counter=max(record.claimed, activation) + 1)


def with_replica(record: QuorumRecord, name: str) -> QuorumRecord:
    """The record once a replica has come to be in sync; its store has the counter ``sequence`` already."""
    return record if name in record.in_sync else attrs.evolve(record, in_sync=(*record.in_sync, name))


def without_replica(record: QuorumRecord, name: str) -> Claim:
    """The steps by which the node that serves goes on without a replica: no other copy counts as the newest then."""
    left = tuple(one for one in record.in_sync if one != name)
    return _steps(record, attrs.evolve(record, in_sync=left), counter=record.claimed + 1)
