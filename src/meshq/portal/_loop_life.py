"""The life cycle of a thread with a trio loop, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``launch``: the owner starts the thread.  ``end``: somebody asks for the end, which may come before the start.
#: ``halt``: the loop has ended, after a request or by a defect; the thread says it when the blocks are left, and again
#: as its last step.
LOOP_TRANSITIONS: Final[Transitions] = {
    "new": {"launch": "open", "end": "new, ending"},
    "new, ending": {"launch": "ending", "end": "new, ending"},
    "open": {"end": "ending", "halt": "closed"},
    "ending": {"end": "ending", "halt": "closed"},
    "closed": {"end": "closed", "halt": "closed"},
}
#: The states in which the thread was not started.
NEW: Final = ("new", "new, ending")
#: The states in which the loop takes calls, or will as soon as it runs.
RUNNING: Final = ("open", "ending")
