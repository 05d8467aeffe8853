"""The life cycle of a session at the broker, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``attach``: a connection has the session.  ``detach``: the connection is lost, and the session waits for its client.
#: ``end``: the client has said good-bye or broken the protocol, or the time for a return is over.
SESSION_TRANSITIONS: Final[Transitions] = {
    "new": {"attach": "attached", "end": "ended"},
    "detached": {"attach": "attached", "end": "ended"},
    "attached": {"detach": "detached", "end": "ended"},
    "ended": {},
}
