"""The names that users may give: the broker reserves some for itself."""

from __future__ import annotations

from meshq.address import INTERNAL, MANAGEMENT, TEMPORARY, Target, check_literal, tells_events
from meshq.errors import UsageError


def check_own(*names: str) -> str:
    """Check names, and patterns of names, that users may use; return the first.  Raises: UsageError (reserved)."""
    for name in names:
        if name.startswith(TEMPORARY):
            raise UsageError(f"{name!r} can't be made: names that begin with {TEMPORARY!r} are given by the broker")
    return check_open(*names)


def check_made(*names: str) -> str:
    """Check names of new objects; return the first.  Raises: UsageError, SettingsError (a pattern)."""
    for name in names:
        check_literal("name", name)
    return check_own(*names)


def check_sendable(address: str) -> str:
    """Check that users may send to an address; return it.

    Raises:
        UsageError: the address is reserved for the broker.
    """
    if tells_events(address):
        raise UsageError(f"{address!r} is for what a broker tells of itself: nobody else sends to it")
    return check_open(address)


def check_request_target(target: Target) -> None:
    """Check that the target of a management request names no queue.

    Raises:
        UsageError: it names a queue.
    """
    if target.queue is not None:
        raise UsageError(f"the address {MANAGEMENT!r} has no queues")


def check_open(*names: str | None) -> str:
    """Check names that users give; return the first.

    Raises:
        UsageError: a name is reserved for the broker.
    """
    for name in names:
        if name == MANAGEMENT:
            raise UsageError(f"{name!r} takes requests to the broker, and nothing else is to be done with it")
        if name is not None and name.startswith(INTERNAL):
            raise UsageError(f"{name!r} is the broker's own: names that begin with {INTERNAL!r} can be looked at only")
    return names[0] or ""
