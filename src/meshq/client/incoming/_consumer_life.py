"""The life cycle of a consumer at the broker, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``ask``: the session asks the broker to open the consumer, again in each new session.  ``defer``: the node is going
#: away, and the next session asks.  A consumer that is closed while it is being opened waits for the answer, and then
#: leaves.  ``end``: a browse has brought everything.
CONSUMER_TRANSITIONS: Final[Transitions] = {
    "new": {"ask": "opening", "close": "closed", "fail": "failed"},
    "opening": {
        "ask": "opening",
        "defer": "waiting",
        "open": "open",
        "end": "ended",
        "close": "closing",
        "fail": "failed",
    },
    "waiting": {"ask": "opening", "close": "closed", "fail": "failed"},
    "open": {"ask": "opening", "end": "ended", "close": "closed", "fail": "failed"},
    "closing": {"open": "closed", "end": "closing", "close": "closing", "fail": "failed"},
    "ended": {"close": "ended", "fail": "ended"},
    "closed": {"end": "closed", "close": "closed", "fail": "closed"},
    "failed": {"end": "failed", "close": "failed", "fail": "failed"},
}


def new_life() -> LifeCycle:
    """The life of a consumer that the broker does not know yet."""
    return LifeCycle("consumer", CONSUMER_TRANSITIONS)
