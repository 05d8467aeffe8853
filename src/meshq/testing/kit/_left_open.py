"""Calls of a test's functions that close the objects which a function has left open, and name them in an error.

Whoever enters ``async with`` by hand and never leaves it ends a task inside a cancel scope of the object, which trio
calls an internal error of its own: the run of the whole test is over without a word about the object.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import trio

from meshq.concurrency import Block
from meshq.errors import MeshqError, UsageError, short

#: Steps from a cancel scope to the object that has entered it: by way of its block, and of tables of attributes.
STEPS_MAX: Final = 4


async def called(function: Callable[..., Awaitable[Any]], arguments: Iterable[Any], what: str) -> Any:
    """Call an async function and return its value.  ``what``: how an error names the function.

    Checkpoint: as the function.  Cancellation: as the function; what it has left open is closed.
    Raises:
        UsageError: it is no async function, or has left something open, which is named.
    """
    before = _innermost()
    awaitable = function(*arguments)
    if not hasattr(awaitable, "__await__"):
        raise UsageError(f"{what} has to be an async function, and {short(function)} is none")
    try:
        value = await awaitable
    except BaseException:
        await _close(before)
        raise
    names = await _close(before)
    if names:
        text = f"still open at the end of {what}: {', '.join(names)}"
        raise UsageError(f"{text}; enter it with async with, or close the exit stack")
    return value


def _innermost() -> Any:
    """The innermost cancel scope of this task, as trio keeps it; None, always, where trio keeps it otherwise."""
    return getattr(trio.lowlevel.current_task(), "_cancel_status", None)


async def _close(before: object) -> list[str]:
    """Close the objects that this task has entered since ``before``, the last one first; return their names."""
    names: list[str] = []
    while (now := _innermost()) is not before and now is not None:
        owner = _owner_of(now._scope)
        if owner is None:
            # It is none of ours, and trio says itself what was not left.
            break
        names.append(repr(owner))
        # No cancel scope around it: that of the object has to be the innermost one.
        with suppress(MeshqError):
            await owner.__aexit__(None, None, None)
        if _innermost() is now:
            # It was closed before, and is not in this task.
            break
    return names


def _owner_of(scope: trio.CancelScope) -> Any:
    """Find the object of meshq that has entered a cancel scope."""
    things: list[object] = [scope]
    for _ in range(STEPS_MAX):
        holders = [holder for thing in things for holder in gc.get_referrers(thing)]
        for holder in holders:
            if type(holder).__module__.startswith("meshq.") and hasattr(holder, "__aexit__"):
                return holder
        things = [holder for holder in holders if isinstance(holder, Block) or type(holder) is dict]
    return None
