"""The promises of the page on clustered groups, as they are seen from outside all nodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshq.cluster.grouping._arbiter_machine import ArbiterMachine, arbiter_of
from qa.grouping_model.cluster import ModelCluster
from qa.grouping_model.node import NodeLife
from qa.grouping_model.queues import QUEUE


def check_holders(cluster: ModelCluster) -> None:
    """CG2: of two nodes that have met, and have met the arbiter, at most one holds a pin."""
    holders: dict[tuple[str, str], NodeLife] = {}
    by_id = {life.node.node_id.hex(): life for life in cluster.lives}
    for life in cluster.lives:
        if not life.pins.active:
            continue
        for name in life.pins.held:
            other = holders.setdefault(name, life)
            if other is life or not have_met(life, other):
                continue
            arbiter = by_id.get(arbiter_of(name, _members(life)))
            # Only the arbiter can say which of them gives it up.
            if arbiter is not None and all(one is arbiter or have_met(one, arbiter) for one in (life, other)):
                life.violated("CG2", f"the pin of {name[1]} is held by {other.name}, too, and they have met")


def have_met(first: NodeLife, second: NodeLife) -> bool:
    """Whether two nodes know the same members, and have introduced themselves to all that they see, and each other."""
    return _members(first) == _members(second) and _knows(first, second) and _knows(second, first)


def _members(life: NodeLife) -> frozenset[str]:
    return life.grouping.arbiter.members


def _knows(life: NodeLife, other: NodeLife) -> bool:
    arbiter, known = life.grouping.arbiter, other.node.node_id.hex()
    # What it was told by an earlier life of the other one says nothing of this one.
    lives, _ = arbiter._letters.get(known, ([""], 0))
    heard = arbiter.has_heard(known) and lives[-1] == other.instance.hex()
    # Without an answer it does not know yet what it has to give up, also if there is no link any more.
    letters = life.grouping._letters
    told, shared = letters._told.get(known), letters._shared.get(known)
    answered = told is not None and told[1] == arbiter.members == shared
    return known in arbiter.members and heard and answered and life.grouping.settled


def unaffected(cluster: ModelCluster, before: frozenset[str], groups: list[str]) -> list[str]:
    """Return the new groups that need no absent node.

    Their arbiter is there, whichever node is asked, and was theirs among the members ``before``, when all had met.
    """
    there = {life.node.node_id.hex() for life in cluster.lives}
    found = []
    for group in groups:
        arbiters = {arbiter_of((QUEUE, group), members) for members in (before, *map(_members, cluster.lives))}
        if len(arbiters) == 1 and arbiters <= there:
            found.append(group)
    return found


def disagreements(cluster: ModelCluster) -> Iterator[str]:
    """List the contradictions between nodes at rest."""
    by_id = {life.node.node_id.hex(): life for life in cluster.lives}
    for life in cluster.lives:
        arbiter = life.grouping.arbiter
        for name, holder in arbiter.pins.items():
            if arbiter_of(name, arbiter.members) != life.node.node_id.hex():
                yield f"{life.name} keeps the pin of {name[1]} at {holder[:8]}, and is not its arbiter"
        for name in life.pins.held:
            decides = by_id.get(arbiter_of(name, arbiter.members))
            known = decides.grouping.arbiter.pins.get(name) if decides is not None else life.node.node_id.hex()
            if known != life.node.node_id.hex():
                yield f"{life.name} holds the pin of {name[1]}, of which its arbiter says {known!r}"


def _given(arbiter: ArbiterMachine) -> list[str]:
    """The nodes to which this life has given pins; an earlier one may have known others."""
    return [holder for name, holder in arbiter.pins.items() if name in arbiter._sure]


def leaks(life: NodeLife) -> Iterator[str]:
    """List the entries of a node at rest that belong to something gone.  No messages wait."""
    arbiter, pins, grouping = life.grouping.arbiter, life.pins, life.grouping
    members = arbiter.members
    if life.node.queue is not None:
        life.places.away(life.node.queue)  # type: ignore[arg-type]
    empty: dict[str, Any] = {
        "wanted": pins.wanted,
        "asked": pins._asked,
        "away": pins.away,
        "freed": grouping._freed,
        "lost": grouping._lost,
        "changed": arbiter.changed,
        "letters under way": grouping._letters._busy,
        "nodes alone": grouping._alone,
        "pins that are counted": arbiter._counting,
    }
    for what, found in empty.items():
        if found:
            yield f"{life.name} has {what} left: {found}"
    nodes: dict[str, Any] = {
        "pins elsewhere": pins.elsewhere.values(),
        "pins given": _given(arbiter),
        # What an earlier life has heard of nodes that this one does not know may still be of use: it may hear of them.
        "introduced nodes": arbiter._introduced.keys() - arbiter._remembered.keys(),
        "nodes told all": grouping._letters._told,
        "members shared": grouping._letters._shared,
        "nodes to ask again": grouping._letters._again,
        "nodes to tell anew": grouping._letters._stale,
    }
    for what, ids in nodes.items():
        if gone := set(ids) - members:
            yield f"{life.name} has {what} of nodes that are gone: {sorted(one[:8] for one in gone)}"
    if life.node.journal.pins() != arbiter.pins:
        yield f"{life.name} keeps the pins {life.node.journal.pins()}, and has {arbiter.pins}"
    for what, names in {"sure": arbiter._sure, "uncounted": arbiter._uncounted}.items():
        if names.keys() - arbiter.pins.keys():
            yield f"{life.name} has {what} pins that nobody has: {names.keys() - arbiter.pins.keys()}"
    if pins._used.keys() - pins.held.keys() - pins.elsewhere.keys():
        yield f"{life.name} has used pins that it does not know"
