"""Whether a store is the newest one of its node id, as far as directories say: the facts, and the doubts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs

#: A claimed store begins so many epochs later, so that every other copy is older.
CLAIM_EPOCHS: Final = 1_000

#: Seconds for which the mark of a claimed store is good.
MARK_S: Final = 3_600.0

Kind = Literal["shared", "replicated"]


@attrs.frozen(kw_only=True)
class StoreFacts:
    """The facts about one store.

    ``kind``: pairs share it, or each node of a pair has one.  ``epoch``, ``activation``: of the last term.  ``acted``,
    ``in_sync``, ``named``, ``partner``: as in the memory of a node that replicates.  ``backup``: the node followed as a
    configured backup.  ``claimed``: it is claimed already.
    """

    directory: str
    kind: Kind
    node_id: str
    epoch: int
    activation: int
    acted: bool = True
    in_sync: bool = True
    named: int = 0
    partner: str = ""
    members: tuple[str, ...] = ()
    backup: bool = False
    claimed: bool = False

    @property
    def order(self) -> tuple[int, bool, bool]:
        """The place of the store: a later one is newer."""
        return self.epoch, self.acted, self.in_sync


def doubts(own: StoreFacts, peers: Sequence[StoreFacts]) -> tuple[str, ...]:
    """Return why a newer copy is possible; empty: there is none, if the peers are all other copies."""
    found = []
    for peer in peers:
        if peer.order > own.order:
            found.append(f"{peer.directory} is newer: epoch {peer.epoch}, {_last(peer)}")
        elif peer.order == own.order and not own.in_sync:
            found.append(f"{peer.directory} says the same of itself, and neither is known to be whole")
    if own.named > own.epoch:
        found.append(f"another node has served in epoch {own.named}")
    if not (own.acted or own.in_sync):
        found.append("it was not in sync when its node heard last of the one that served")
    if own.kind == "replicated" and not peers:
        who = "a replica may have taken over since" if own.acted else "the node that served may have gone on alone"
        found.append(f"{who}; the directories of the other nodes, each with --peer, tell")
    return tuple(found)


def ended_mark(age_s: float) -> str:
    """Return why a mark of this age orders nothing any more; empty: it does."""
    if abs(age_s) <= MARK_S:
        return ""
    return f"the mark of `meshq store claim` is void: it is good for {MARK_S:g} s, and is {abs(age_s):.0f} s old"


def told(own: StoreFacts, position: int | None, written: str) -> list[str]:
    """Return the facts of a store as lines."""
    role = "one of those who share it" if own.kind == "shared" else "backup" if own.backup else "primary"
    members = ", ".join(own.members) or "not stored"
    return [
        f"{own.directory}: {own.kind}, node id {own.node_id or 'none yet'}",
        f"  role {role}, epoch {own.epoch}, activation {own.activation}, {_last(own)}",
        f"  last durable position {'not known' if position is None else position}, written at {written}",
        f"  in sync {members}, partner {own.partner or 'not stored'}",
    ]


def _last(store: StoreFacts) -> str:
    if store.acted:
        return "it served last"
    return "it followed, in sync" if store.in_sync else "it followed, not in sync"
