"""The life cycle of an outbox, as a table: of a producer as the session and the broker know it."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``ask``: the broker is asked to open a channel, again in each new session.  ``open``: the broker has opened the
#: channel.  ``defer``: the channel is gone, and the next session asks.  ``close``: the producer is closed; the outbox
#: stays until its last run is settled.  ``leave``: that is so, and the channel is given back.  ``fail``: the broker
#: does not take the producer, or the session has failed.
OUTBOX_TRANSITIONS: Final[Transitions] = {
    "waiting": {"ask": "opening", "defer": "waiting", "close": "waiting, closing", "fail": "failed"},
    "opening": {"defer": "waiting", "open": "open", "close": "opening, closing", "fail": "failed"},
    "open": {"defer": "waiting", "close": "closing", "fail": "failed"},
    "waiting, closing": {
        "ask": "opening, closing",
        "defer": "waiting, closing",
        "close": "waiting, closing",
        "leave": "left",
        "fail": "failed",
    },
    "opening, closing": {
        "defer": "waiting, closing",
        "open": "closing",
        "close": "opening, closing",
        "fail": "failed",
    },
    "closing": {"defer": "waiting, closing", "close": "closing", "leave": "left", "fail": "failed"},
    "left": {"close": "left"},
    "failed": {"close": "failed"},
}
#: The states in which the channel is open.
READY: Final = ("open", "closing")


def new_life() -> LifeCycle:
    """The life of an outbox that no session knows yet."""
    return LifeCycle("outbox", OUTBOX_TRANSITIONS, "waiting")
