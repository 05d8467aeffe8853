"""When the broker is killed: how far the producer may go until then, and what must be true at that moment.

A kill must catch messages in every state, and by more than luck.  So the consumers hold their acknowledgements from
``hold_at`` rows on, then the producer sends a backlog, and when enough is delivered and enough is ready the kill may
come: with the producer on its way again, unless it has finished, and one consumer acknowledging.
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.limits import PRODUCER_WINDOW_MESSAGES

CONSUMERS: Final = 3
#: Messages that one consumer is given and has not settled, at most.
WINDOW: Final = 600
#: What a kill has to catch, at least: messages delivered and not acknowledged, and messages ready.
DELIVERED_MIN: Final = 500
READY_MIN: Final = 5_000
#: Rows that are sent while the consumers hold: each fills its window, the one that acknowledges fills it once more.
BACKLOG: Final = READY_MIN + (CONSUMERS + 1) * WINDOW
#: Where in the file the first kill comes: two fifths, so that most of it still has to pass through the new broker.
FIRST_NUMERATOR: Final = 2
FIRST_DENOMINATOR: Final = 5
#: The fewest rows for which both kills can be made.
ROWS_MIN: Final = 20_000

assert (CONSUMERS - 1) * WINDOW >= DELIVERED_MIN, "the consumers that hold must be able to hold enough"
assert ROWS_MIN * FIRST_NUMERATOR // FIRST_DENOMINATOR >= BACKLOG, "the first backlog must fit before its kill"
assert ROWS_MIN - BACKLOG - ROWS_MIN * FIRST_NUMERATOR // FIRST_DENOMINATOR >= PRODUCER_WINDOW_MESSAGES, (
    "between the backlogs the producer must be able to fill its window"
)


@attrs.frozen(kw_only=True)
class Kill:
    """One kill, by rows of the file."""

    when: str
    #: The producer waits here until all consumers hold.
    hold_at: int
    #: The backlog ends here; the conditions are looked at once all of it is confirmed.
    check_at: int
    #: How far the producer may go when they are met; the kill comes once it is on its way.
    go_on_to: int

    @property
    def in_flight(self) -> bool:
        """Whether the producer is sending at that moment."""
        return self.go_on_to > self.check_at


def plan_kills(rows: int) -> tuple[Kill, Kill]:
    """Both kills for so many rows, at least ``ROWS_MIN``."""
    first = rows * FIRST_NUMERATOR // FIRST_DENOMINATOR
    last = rows - BACKLOG
    return (
        Kill(when="while the producer sends", hold_at=first - BACKLOG, check_at=first, go_on_to=last),
        Kill(when="after the producer has finished", hold_at=last, check_at=rows, go_on_to=rows),
    )
