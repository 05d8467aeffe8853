"""The phases of a handshake at the server, as a table.  Each phase has a timeout of its own."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``greet``: version and features are agreed.  ``admit``: the user is known, or need not be.  ``deny``: the other side
#: could not authenticate.  ``attach``: the connection has a session.
HANDSHAKE_TRANSITIONS: Final[Transitions] = {
    "new": {"greet": "greeted"},
    "greeted": {"admit": "authenticated", "deny": "denied"},
    "authenticated": {"attach": "attached"},
    "attached": {},
    "denied": {},
}
