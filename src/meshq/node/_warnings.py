"""Warnings of a node: one line for each cause, and one a minute at most for what goes on happening."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.logs import logger

_log = logger("node")
#: A warning that repeats is given so often at most.
REPEAT_S: Final = 60.0


class Warnings:
    """Logs what somebody must act on.  ``now`` is the monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # By event: when it was given, and how often it was not since then.
        self._given: dict[str, tuple[float, int]] = {}

    def say(self, event: str, text: str) -> None:
        """Something has happened again, or for the first time."""
        now = self._now()
        given, suppressed = self._given.get(event, (-REPEAT_S, 0))
        if now - given < REPEAT_S:
            self._given[event] = given, suppressed + 1
            return
        self._given[event] = now, 0
        since = f" (and {suppressed} times more since the last warning)" if suppressed else ""
        _log.warning("%s%s", text, since, extra={"event": event})
