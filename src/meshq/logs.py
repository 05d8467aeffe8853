"""Loggers: the standard library's, silent until the program says otherwise; and warnings that don't repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

#: A warning that repeats is given so often at most.
REPEAT_S: Final = 60.0
#: Causes that are remembered, the oldest leaving first: other nodes and queues are named in them, and may be many.
CAUSES_MAX: Final = 1_000


def logger(package: str) -> logging.Logger:
    """The logger of a package of meshq; nothing of it is printed unless the program has set up its logging."""
    root = logging.getLogger("meshq")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logging.getLogger(f"meshq.{package}")


class Warnings:
    """Warnings for operators: one record for each cause, at most one a minute while the cause lasts.

    ``now`` is the monotonic clock.
    """

    def __init__(self, package: str, now: Callable[[], float]) -> None:
        self._log = logger(package)
        self._now = now
        # By event and cause: when it was given, and how often it was not since then.
        self._given: dict[tuple[str, str], tuple[float, int]] = {}

    def say(self, event: str, text: str, cause: str = "") -> None:
        """Something has happened again, or for the first time.

        ``event``: its stable name.  ``cause``: who or what it comes from, where one event may have several.
        """
        now, key = self._now(), (event, cause)
        given, suppressed = self._given.pop(key, (-REPEAT_S, 0))
        if now - given < REPEAT_S:
            self._given[key] = given, suppressed + 1
            return
        self._given[key] = now, 0
        if len(self._given) > CAUSES_MAX:
            del self._given[next(iter(self._given))]
        since = f" (and {suppressed} times more since the last warning)" if suppressed else ""
        self._log.warning("%s%s", text, since, extra={"event": event})
