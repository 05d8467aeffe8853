"""The number of flights by the brokers on their way, and which steps of the demo are missing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import attrs

from meshq.demo._flights_format import parse
from meshq.demo._networked._brokers import HOPS_MAX, HUB_EAST, HUB_WEST
from meshq.demo._paired import FlightAccount


@attrs.define(kw_only=True)
class NetworkAccount(FlightAccount):
    """The account of a network."""

    #: By the brokers on the way, from the first to the one with the consumer, how many flights took it.
    ways: Counter[tuple[str, ...]] = attrs.field(factory=Counter)
    #: Consumers that have moved: the origin, from where, and to where.
    moves: list[tuple[str, str, str]] = attrs.field(factory=list)
    #: Flights that were confirmed while the hub was away, and seconds until one crossed it again.
    sent_meanwhile: int = 0
    away_s: float = 0.0
    #: Flights that waited where a consumer had left, and were taken when it came back.
    waited: int = 0

    def came(self, line: bytes) -> bytes:
        """Note a flight that has come; return its key.  No broker with a consumer is lost, so none comes again."""
        key = parse(line).key
        self.again += key in self.arrived
        self.arrived[key] = line
        return key

    @property
    def rows(self) -> list[str]:
        """The lines of the table about ways and steps."""
        rows = [f"{'flights':>9}  way"]
        rows += [f"{number:>9,}  {' > '.join(way)}" for way, number in sorted(self.ways.items())]
        rows += [f"consumer of {origin}: from {old} to {new}" for origin, old, new in self.moves]
        rows.append(f"{self.waited:,} flights waited where a consumer had left, and were taken when it came back")
        return [
            *rows,
            f"{HUB_WEST} was killed: {self.sent_meanwhile:,} flights were confirmed meanwhile, and after "
            f"{self.away_s:.2f} s flights crossed it again",
        ]

    def _further_differences(self) -> list[str]:
        said = [
            f"{number:,} flights went in a circle: {' > '.join(way)}"
            for way, number in self.ways.items()
            if len(set(way)) < len(way) or len(way) > HOPS_MAX + 1
        ]
        hubs = (HUB_EAST, HUB_WEST)
        for hop in (hubs, hubs[::-1]):
            if not any(hop in pairwise(way) for way in self.ways):
                said.append(f"no flight went from {hop[0]} to {hop[1]}")
        if not self.moves:
            said.append("no consumer has moved")
        if not self.sent_meanwhile:
            said.append(f"no flight was sent while {HUB_WEST} was away")
        if not self.away_s:
            said.append(f"no flight has crossed {HUB_WEST} since it came back")
        return said
