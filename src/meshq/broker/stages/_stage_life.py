"""The life cycle of a stage: one part of a batch of a sink."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: Its writer adds messages.
OPEN: Final = "open"
#: All its messages are stored; it waits for the decision about its batch.
PREPARED: Final = "prepared"
#: Its batch is committed: its messages go to their addresses.
PLACING: Final = "placing"
#: It does not count: its messages are being removed.
DROPPING: Final = "dropping"
GONE: Final = "gone"
STAGE_TRANSITIONS: Final[Transitions] = {
    OPEN: {"prepare": PREPARED, "drop": DROPPING},
    PREPARED: {"win": PLACING, "drop": DROPPING},
    PLACING: {"placed": GONE},
    DROPPING: {"removed": GONE},
    GONE: {},
}
