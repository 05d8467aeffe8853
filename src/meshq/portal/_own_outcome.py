"""Calls into a loop that return the ClosedError of the called function, so that it differs from one of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import outcome

from meshq.concurrency import first_error
from meshq.errors import ClosedError

T = TypeVar("T")


async def own_outcome(
    function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any
) -> outcome.Value[T] | outcome.Error:
    """Call a coroutine function; return its value, or its error if that may be a ``ClosedError``; others are raised."""
    try:
        return outcome.Value(await function(*arguments, **keywords))
    except (ClosedError, ExceptionGroup) as error:
        return outcome.Error(first_error(error))


def own_outcome_sync(function: Callable[[], T]) -> outcome.Value[T] | outcome.Error:
    """Call a plain function; return its value, or its error if that may be a ``ClosedError``; others are raised."""
    try:
        return outcome.Value(function())
    except (ClosedError, ExceptionGroup) as error:
        return outcome.Error(first_error(error))
