"""Facts about nodes, stores and counters that no client sees, for the checkers."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Act:
    """The first of several acts of one term: a node that serves under a node id lets its messages and confirms go."""

    at_s: float
    #: Nodes that share a node id have one store.
    store: str
    node: str
    #: Each time that a node gets the role is another term.
    term: int


@attrs.frozen
class ExportedCounter:
    """A counter that a broker tells, and between which numbers it has to be."""

    place: str
    name: str
    told: int
    least: int
    most: int


@attrs.define(eq=False)
class NodeFacts:
    """The facts about the nodes of one test."""

    #: Acts of terms, one for each time that another term acts than before.
    acts: list[Act] = attrs.field(factory=list)
    #: Store -> node that is in sync -> the digests of its records, by position.
    copies: dict[str, dict[str, Mapping[int, str]]] = attrs.field(factory=dict)
    #: What nodes have left that were stopped cleanly: tasks and files.
    left: list[str] = attrs.field(factory=list)
    #: What is bounded, how much of it there is, and how much there may be.
    bounds: list[tuple[str, int, int]] = attrs.field(factory=list)
    #: Queues to which messages go that are rejected or have expired.
    dead_letters: dict[str, None] = attrs.field(factory=dict)
    #: Counters as brokers tell them.
    exported: list[ExportedCounter] = attrs.field(factory=list)
