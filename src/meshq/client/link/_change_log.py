"""The log of a client: a line for each change of state, a repeated line at most once a minute."""

from __future__ import annotations

import logging
from typing import Final

from meshq.logs import logger

_log: Final = logger("client")

#: Seconds in which the same event is said once.
REPEAT_S: Final = 60.0


class ChangeLog:
    """The lines of one client, or of all lives of a node's link.

    ``loudest``: the level of what is said at most.  Who makes links anew warns of what somebody must act on, once.
    """

    __slots__ = ("_loudest", "_said")

    def __init__(self, loudest: int = logging.WARNING) -> None:
        self._loudest = loudest
        # Event -> when it was last said, and how often it has happened since.
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, level: int, event: str, text: str, now: float) -> None:
        """Log an event, with the number of times that it was not said."""
        level = min(level, self._loudest)
        said_at, unsaid = self._said.get(event, (-REPEAT_S, 0))
        if now - said_at < REPEAT_S and level < logging.WARNING:
            self._said[event] = (said_at, unsaid + 1)
            return
        self._said[event] = (now, 0)
        more = f" ({unsaid} more since the last line)" if unsaid else ""
        _log.log(level, "%s%s", text, more, extra={"event": event, "count": unsaid + 1})
