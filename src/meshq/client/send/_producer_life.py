"""The life cycle of a producer, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``ask``: the block is entered, and the broker is asked to open the producer.  ``open``: the broker has opened the
#: producer, again in each new session; a producer that is closed while it is being opened stays closed.  ``close``:
#: no more messages are taken; the confirms of the last messages may come later, and so may a failure.
PRODUCER_TRANSITIONS: Final[Transitions] = {
    "new": {"ask": "opening", "close": "closed"},
    "opening": {"open": "open", "close": "closed", "fail": "failed"},
    "open": {"open": "open", "close": "closed", "fail": "failed"},
    "closed": {"open": "closed", "close": "closed", "fail": "failed, closed"},
    "failed": {"close": "failed, closed", "fail": "failed"},
    "failed, closed": {"close": "failed, closed", "fail": "failed, closed"},
}
#: The words of ``ProducerStatistics.state``.
SHOWN: Final = {
    "new": "closed",
    "opening": "open",
    "open": "open",
    "closed": "closed",
    "failed": "failed",
    "failed, closed": "failed",
}
#: The states in which the program has closed the producer.
CLOSED: Final = ("closed", "failed, closed")


def new_life() -> LifeCycle:
    """The life of a producer that the broker does not know yet."""
    return LifeCycle("producer", PRODUCER_TRANSITIONS)
