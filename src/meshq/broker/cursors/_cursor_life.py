"""The life cycle of the lease of a durable cursor."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: Nobody has a lease that is running; somebody has; the cursor was deleted or given up.
FREE: Final = "free"
HELD: Final = "held"
GONE: Final = "gone"
#: The lease of a cursor.  A lease that ran out can be renewed as long as nobody else has taken the cursor.
CURSOR_TRANSITIONS: Final[Transitions] = {
    FREE: {"take": HELD, "renew": HELD, "release": FREE, "give up": GONE, "delete": GONE},
    HELD: {"take": HELD, "renew": HELD, "release": FREE, "expire": FREE, "delete": GONE},
    GONE: {},
}
