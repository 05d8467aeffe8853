"""The life cycle of an outgoing run, as a table: from the producer's call to the broker's confirm."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``queue``: the run waits for credit, for the confirmation window or for a link.  ``hold``: the session is lost, and
#: the run waits for the next one.  ``send``: the run is on its way and has its number.  ``refuse``: the node did not
#: take the run, because the node is stopping.  ``give up``: the waiting task was cancelled, or its timeout is over;
#: only a run that was never sent can be given up.
RUN_TRANSITIONS: Final[Transitions] = {
    "held": {"queue": "queued", "send": "sent", "give up": "given up"},
    "queued": {"queue": "queued", "hold": "held", "send": "sent", "give up": "given up"},
    "sent": {"queue": "queued again", "refuse": "refused", "give up": "sent"},
    "refused": {"queue": "queued again", "give up": "refused"},
    "queued again": {"queue": "queued again", "hold": "sent", "send": "sent", "give up": "queued again"},
    "given up": {"queue": "given up", "hold": "given up", "give up": "given up"},
}
#: The states of a run that was never sent.
UNSENT: Final = ("held", "queued", "given up")
