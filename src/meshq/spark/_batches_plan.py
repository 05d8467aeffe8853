"""The plan of a batch: the end in each partition, and the shares of the tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

#: A range of sequences, half open.
Range = tuple[int, int]


class Slice(NamedTuple):
    """The share of one task: sequences of one partition, half open."""

    key: str
    lo: int
    hi: int


class Backlog(NamedTuple):
    """The waiting sequences of a partition, half open, with the known holes among them."""

    lo: int
    hi: int
    holes: tuple[Range, ...] = ()

    @property
    def size(self) -> int:
        """The number of messages, as far as the holes are known."""
        return self.hi - self.lo - sum(hi - lo for lo, hi in self.holes)

    def end_after(self, count: int) -> int:
        """Return the end behind so many messages, and behind the hole that may follow: it costs nothing."""
        at = self.lo
        for lo, hi in self.holes:
            if count < lo - at:
                break
            count -= lo - at
            at = hi
        return min(at + count, self.hi)


def admitted(backlogs: Mapping[str, Backlog], most: int | None) -> dict[str, int]:
    """Share out at most ``most`` messages among partitions by their backlogs; return the end in each.

    The rounded shares leave something over, which goes to the largest backlogs first.
    """
    sizes = {key: backlog.size for key, backlog in sorted(backlogs.items())}
    total = sum(sizes.values())
    if most is None or total <= most:
        return {key: backlog.hi for key, backlog in backlogs.items()}
    shares = {key: most * size // total for key, size in sizes.items()}
    left = most - sum(shares.values())
    for key in sorted(sizes, key=lambda one: (-sizes[one], one)):
        more = min(left, 1, sizes[key] - shares[key])
        shares[key] += more
        left -= more
    return {key: backlogs[key].end_after(share) for key, share in shares.items()}


def most_rows(max_rows: int | None, max_bytes: int | None, mean_bytes: float) -> int | None:
    """Return the maximum number of sequences of a batch by both limits, at least one; None: no limit."""
    limits = [] if max_rows is None else [max_rows]
    if max_bytes is not None and mean_bytes > 0:
        limits.append(max(1, int(max_bytes / mean_bytes)))
    return min(limits) if limits else None


def has_to_wait(waiting: int, least: int | None, waited_s: float, longest_s: float) -> bool:
    """Whether a batch waits for more sequences."""
    return least is not None and waiting < least and waited_s < longest_s


def slices_of(ranges: Mapping[str, Range], min_tasks: int | None, max_rows: int | None) -> list[Slice]:
    """Cut ranges into the shares of tasks: each at most ``max_rows`` long, and at least ``min_tasks`` of them if there
    are as many sequences."""
    sizes = {key: hi - lo for key, (lo, hi) in sorted(ranges.items()) if lo < hi}
    total = sum(sizes.values())
    found: list[Slice] = []
    for key, size in sizes.items():
        count = 1 if max_rows is None else -(-size // max_rows)
        if min_tasks is not None:
            count = max(count, -(-min_tasks * size // total))
        count = min(count, size)
        lo = ranges[key][0]
        cuts = [lo + size * index // count for index in range(count + 1)]
        found += [Slice(key, start, end) for start, end in itertools.pairwise(cuts)]
    return found
