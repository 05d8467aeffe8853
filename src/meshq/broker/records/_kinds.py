"""The kinds of records, and the error for a record that can't be read."""

from __future__ import annotations

from typing import Final

from meshq.errors import DamagedError

#: Record kinds; 1 is the journal's own.  Never reused.
RUN: Final = 2
SETTLED: Final = 3
IDS: Final = 4
DEFINITION: Final = 5
MARKS: Final = 6
PRODUCERS: Final = 7
ROUTED: Final = 8
LINKS: Final = 9
PLACED: Final = 10
DUE: Final = 11
COUNTED: Final = 12
PREPARED: Final = 13
WAITING: Final = 14
DECIDED: Final = 15
USER_PRODUCERS: Final = 16
HANDED_IDS: Final = 17
ARRIVING: Final = 18
ARRIVED: Final = 19
HANDED: Final = 20
ELSEWHERE: Final = 21
BRANCHES: Final = 22


def unreadable(what: str) -> DamagedError:
    """The error for a record whose bytes are right and whose form is not."""
    return DamagedError("journal", 0, f"a readable {what} record", "one whose check is right and whose form is not")
