"""The settings, statistics, lag and holes of cursors."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import attrs

from meshq.address import check_name, parse_target
from meshq.errors import SettingsError

#: Where a cursor begins that is registered now.
CursorStart = Literal["earliest", "latest"]
STARTS: Final = get_args(CursorStart)
#: Seconds that a lease may be long.
LEASE_S_MIN: Final = 0.1
LEASE_S_MAX: Final = 3_600.0
#: Sequences, and numbers of messages, are below this.
SEQUENCE_END: Final = 1 << 63


class SequenceHole(NamedTuple):
    """The sequences ``lo`` up to, and without, ``hi``: no message has them.

    ``kind``: ``acknowledged`` by this cursor; ``consumed`` before the cursor was registered; ``expired`` before it was
    pinned; ``lost`` with a restart of the broker, since it was not durable; ``reserved``: no message ever had them.
    """

    lo: int
    hi: int
    kind: str


@attrs.frozen(kw_only=True)
class CursorLag:
    """How far a cursor is behind: the messages that it has not acknowledged.

    ``bytes``: about, of their content.  ``seconds``: since the oldest was sent, by its sender's clock.
    """

    messages: int
    bytes: int
    seconds: float


@attrs.frozen(kw_only=True)
class CursorStatistics:
    """The state of a cursor at its broker."""

    queue: str
    name: str
    #: The user who registered it; empty without security.
    user: str
    #: The owner; empty: nobody has a lease that is running.
    holder: str
    #: When the lease ends unless it is renewed: seconds since 1970, by the broker's clock; 0.0: there is none.
    lease_until: float
    #: The first sequence that it reads; below ``processed`` all is acknowledged; below ``pinned`` nothing expires.
    start: int
    processed: int
    pinned: int
    #: The high mark of the queue: the sequence that the next message will have, or a higher one.
    high: int
    #: Messages that it has not acknowledged.
    lag: int
    #: With more than these, and no owner, it is given up; 0: with no number.
    max_lag: int


class CursorSettings(NamedTuple):
    """The settings of a cursor, checked."""

    start: str
    lease_s: float
    max_lag: int
    window: int


def check_cursor(
    queue: object, name: object, start: object, *, lease: object, max_lag: object, window: object
) -> CursorSettings:
    """Check the arguments of a cursor; return its settings.

    Raises:
        SettingsError: one of them is not allowed.
    """
    parse_target(queue, "queue")  # type: ignore[arg-type]
    check_name("name", name)
    if start not in STARTS:
        raise SettingsError("start", start, " or ".join(map(repr, STARTS)))
    if type(lease) not in (int, float) or not LEASE_S_MIN <= lease <= LEASE_S_MAX:  # type: ignore[operator]
        raise SettingsError("lease", lease, f"seconds from {LEASE_S_MIN:g} to {LEASE_S_MAX:g}")
    if max_lag is not None and max_lag != math.inf and (type(max_lag) is not int or not 1 <= max_lag < SEQUENCE_END):
        raise SettingsError("max_lag", max_lag, "a whole number from 1, math.inf, or None")
    if type(window) is not int or not 1 <= window < 2**31:
        raise SettingsError("window", window, "a whole number from 1 to 2147483647")
    most = 0 if max_lag is None else SEQUENCE_END - 1 if max_lag == math.inf else max_lag
    return CursorSettings(str(start), float(lease), most, window)  # type: ignore[arg-type]


def check_range(lo: object, hi: object) -> None:
    """Check the ends of a range of sequences.

    Raises:
        SettingsError: these are no sequences, or the range ends before it begins.
    """
    if type(lo) is not int or not 1 <= lo < SEQUENCE_END:
        raise SettingsError("lo", lo, "a sequence from 1")
    if type(hi) is not int or not lo <= hi < SEQUENCE_END:
        raise SettingsError("hi", hi, "a sequence from lo")


def add_holes(found: list[SequenceHole], answer: Mapping[str, Any]) -> None:
    """Add the holes of an answer to the holes of the answers before it; neighbours of one kind are one hole."""
    row = 0
    while f"lo{row}" in answer:
        hole = SequenceHole(*(answer[f"{name}{row}"] for name in SequenceHole._fields))
        row += 1
        if found and hole.lo < found[-1].hi:
            continue
        if found and (found[-1].hi, found[-1].kind) == (hole.lo, hole.kind):
            hole = hole._replace(lo=found.pop().lo)
        found.append(hole)


async def all_holes(
    ask: Callable[[int], Awaitable[Mapping[str, Any]]], lo: int, *, pages: float = math.inf
) -> list[SequenceHole]:
    """Ask for the holes of a range from ``lo`` on, page by page: ``ask`` returns the answer from a sequence on."""
    found: list[SequenceHole] = []
    while True:
        at = found[-1].hi if found else lo
        values = await ask(at)
        add_holes(found, values)
        pages -= 1
        if not values["more"] or found[-1].hi <= at or pages <= 0:
            return found
