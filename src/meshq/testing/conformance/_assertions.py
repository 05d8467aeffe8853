"""The assertions of the conformance suites.

Suites are shipped, so they are written without pytest, and with exceptions that ``python -O`` does not strip.
A check is a function that takes what it examines; a suite is a tuple of checks, so that a test runner can show
each as a test of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs


class NonconformanceError(AssertionError):
    """A conformance suite has found that the examined object breaks its contract; the message names the promise."""


def expect(holds: object, promise: str) -> None:
    """The contract says that ``holds`` is true."""
    if not holds:
        raise NonconformanceError(promise)


def expect_equal(found: object, expected: object, promise: str) -> None:
    """The contract says that the two are equal."""
    if found != expected:
        raise NonconformanceError(f"{promise}: expected {_short(expected)}, found {_short(found)}")


@attrs.define
class Caught:
    """The exception that ``expect_raises`` met."""

    error: BaseException | None = None


@contextmanager
def expect_raises(kind: type[BaseException], promise: str) -> Iterator[Caught]:
    """The contract says that the block raises this."""
    caught = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
    except Exception as error:
        raise NonconformanceError(f"{promise}: {error!r} was raised, and no {kind.__name__}") from error
    else:
        raise NonconformanceError(f"{promise}: no {kind.__name__} was raised")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
