"""When the node and the query are killed, and how far rows may be apart in time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs

#: How many nodes there are.
NODES: Final = 3
#: The shares of the flights after which the node and the query are killed: between these.
NODE_SHARES: Final = (0.15, 0.35)
QUERY_SHARES: Final = (0.5, 0.7)
#: So many flights may wait for the query, at least, and this share of all.
WAITING_MIN: Final = 3_000
WAITING_SHARE: Final = 0.04
#: A flight may be behind another one by so many windfuls: one waits, one is read, and one comes while a node is away.
WINDFULS: Final = 4


@attrs.frozen(kw_only=True)
class Strikes:
    """The kills of a run: the flights after which they come, and the node."""

    node: int
    node_at: int
    query_at: int


def plan_strikes(seed: int, rows: int) -> Strikes:
    """The kills of a seed."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=9).digest()
    node, one, two = (int.from_bytes(digest[at : at + 3], "big") / (1 << 24) for at in (0, 3, 6))

    def at(shares: tuple[float, float], place: float) -> int:
        return int(rows * (shares[0] + (shares[1] - shares[0]) * place))

    return Strikes(node=1 + int(node * NODES), node_at=at(NODE_SHARES, one), query_at=at(QUERY_SHARES, two))


def waiting_max(rows: int) -> int:
    """How many flights may wait for the query before the producer waits for it."""
    return max(WAITING_MIN, int(rows * WAITING_SHARE))


def seconds_of(hour: str) -> int:
    """The time of an hour such as ``2013-01-01T10``."""
    return int(datetime.fromisoformat(f"{hour}:00:00+00:00").timestamp())


def span_of(hours: Sequence[str], apart: int) -> int:
    """The seconds between two rows in order that are at most so many rows apart, at most."""
    times = [seconds_of(hour) for hour in hours]
    apart = min(apart, len(times) - 1)
    return max(late - early for early, late in zip(times, times[apart:], strict=False))
