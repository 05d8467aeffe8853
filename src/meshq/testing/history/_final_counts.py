"""Counts at the end of a run: messages that brokers and journals still have, and messages that should be gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from meshq.testing.history._node_facts import NodeFacts


@attrs.define(eq=False, kw_only=True)
class Recovery:
    """The outcome of a recovery; all outcomes of one ``subject``, the same stored state, have to be equal."""

    subject: str
    way: str
    state: object


@attrs.define(eq=False)
class FinalCounts:
    """The counts of the broker, of its journal and of all that should be 0, when everything is over."""

    #: Place -> its counters, as the broker gave them.
    statistics: dict[str, dict[str, int]] = attrs.field(factory=dict)
    #: Place -> (uid, sequence) of the messages that its journal still holds.  ``"queue@a>b"``: for that queue on node
    #: b, but still on node a.
    remaining: dict[str, list[tuple[int, int]]] = attrs.field(factory=dict)
    #: What should have been 0: credit, tasks, open files, ...
    leftovers: dict[str, int] = attrs.field(factory=dict)
    #: Queue -> how many messages the brokers have said that they dropped.
    dropped: dict[str, int] = attrs.field(factory=dict)
    recoveries: list[Recovery] = attrs.field(factory=list)
    #: What was seen at the nodes themselves.
    nodes: NodeFacts = attrs.field(factory=NodeFacts)

    def counted(self, place: str, statistics: Mapping[str, int]) -> None:
        """The counters of a place, or of one more queue of the place."""
        known = self.statistics.get(place, {})
        self.statistics[place] = {name: number + known.get(name, 0) for name, number in statistics.items()}

    def recounted(self, place: str, live: Sequence[tuple[int, int]]) -> None:
        """The (uid, sequence) of every message that the journal holds for a place."""
        self.remaining[place] = list(live)

    def dropped_from(self, queue: str, number: int) -> None:
        """Record how many messages brokers have dropped, as they count it."""
        self.dropped[queue] = number

    def left(self, what: str, number: int) -> None:
        """Record a number that has to be 0."""
        self.leftovers[what] = number

    def recovered(self, subject: str, way: str, state: object) -> None:
        """Record the state to which one way of recovering ``subject`` led."""
        self.recoveries.append(Recovery(subject=subject, way=way, state=state))
