"""Loggers: the standard library's, silent until the program says otherwise; and warnings that don't repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

#: A warning that repeats is given so often at most.
REPEAT_S: Final = 60.0
#: Causes that are remembered, the oldest leaving first: other nodes and queues are named in them, and may be many.
CAUSES_MAX: Final = 1_000
#: Records of one event in a minute, whatever the causes: strangers can invent causes, such as ids of nodes.
EVENT_RECORDS_MAX: Final = 50


def logger(package: str) -> logging.Logger:
    """The logger of a package of meshq; nothing of it is printed unless the program has set up its logging."""
    root = logging.getLogger("meshq")
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logging.getLogger(f"meshq.{package}")


class Warnings:
    """Warnings for operators: one record for each cause, at most one a minute while the cause lasts.  What strangers
    can bring about at will is told in the same way, be it no warning.

    Of one event there are at most ``EVENT_RECORDS_MAX`` records a minute; causes beyond that are counted, and the next
    record of the event says how many.  ``now`` is the monotonic clock.
    """

    def __init__(self, package: str, now: Callable[[], float]) -> None:
        self._log = logger(package)
        self._now = now
        # By event and cause: when it was given, and how often it was not since then.
        self._given: dict[tuple[str, str], tuple[float, int]] = {}
        # By event: when its minute began, the records since then, and the warnings of other causes that were left out.
        self._events: dict[str, tuple[float, int, int]] = {}

    def say(self, event: str, text: str, cause: str = "", *, level: int = logging.WARNING) -> None:
        """Log an event, or count it if it was logged lately.

        ``event``: its stable name.  ``cause``: who or what it comes from, where one event may have several.
        ``level``: that of the logging record.
        """
        now, key = self._now(), (event, cause)
        given, suppressed = self._given.pop(key, (-REPEAT_S, 0))
        if now - given < REPEAT_S:
            self._given[key] = given, suppressed + 1
            return
        began, records, beyond = self._events.get(event, (now, 0, 0))
        if now - began >= REPEAT_S:
            began, records = now, 0
        if records >= EVENT_RECORDS_MAX:
            # What was suppressed of this cause is told with the next record, too.
            self._events[event] = began, records, beyond + suppressed + 1
            return
        self._events[event] = began, records + 1, 0
        self._given[key] = now, 0
        if len(self._given) > CAUSES_MAX:
            del self._given[next(iter(self._given))]
        since = f" (and {suppressed} times more since the last warning)" if suppressed else ""
        others = f" (and {beyond} times more for causes that were not named)" if beyond else ""
        self._log.log(level, "%s%s%s", text, since, others, extra={"event": event})

    def only_counts(self, event: str, cause: str = "") -> bool:
        """Whether an event would be counted now, and not logged."""
        now = self._now()
        given, _ = self._given.get((event, cause), (-REPEAT_S, 0))
        began, records, _ = self._events.get(event, (now, 0, 0))
        return now - given < REPEAT_S or (now - began < REPEAT_S and records >= EVENT_RECORDS_MAX)
