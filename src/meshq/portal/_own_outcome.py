"""What a function that was called into a loop has returned or raised, told apart from errors of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import outcome

from meshq.concurrency import first_error

T = TypeVar("T")


async def own_outcome(
    function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any
) -> outcome.Value[T] | outcome.Error:
    """Call a coroutine function; return its value or its error.  A cancellation is none of these."""
    try:
        return outcome.Value(await function(*arguments, **keywords))
    except Exception as error:
        return outcome.Error(first_error(error))


def own_outcome_sync(function: Callable[[], T]) -> outcome.Value[T] | outcome.Error:
    """Call a plain function; return its value or its error."""
    try:
        return outcome.Value(function())
    except Exception as error:
        return outcome.Error(first_error(error))
