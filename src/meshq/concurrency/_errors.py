"""Errors that go from one task to another."""

from __future__ import annotations

from typing import TypeVar

import trio

E = TypeVar("E", bound=BaseException)


def copied_error(error: E) -> E:
    """Copy an error, to be raised by another task: each task has a traceback of its own."""
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    return copied


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested groups; a cancellation only if there is no other error."""
    while isinstance(error, BaseExceptionGroup):
        others = error.split(trio.Cancelled)[1]
        error = (error if others is None else others).exceptions[0]
    return error
