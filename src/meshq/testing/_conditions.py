"""The conditions under which a run depends on its seed alone, and the rest of a run that was abandoned."""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Collect no garbage in this block: no seed decides when that would happen.

    What the block left behind is young, so a young collection afterwards is enough, and cheap.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


@contextmanager
def passwords_hashed_once() -> Iterator[None]:
    """Give the same password's slow hash only once in this block.

    It is slow on purpose, and a function of its arguments alone: clients of one user took a tenth of a run for it.
    """
    slow = hashlib.pbkdf2_hmac
    setattr(hashlib, "pbkdf2_hmac", functools.cache(slow))  # noqa: B010 - a function is no variable
    try:
        yield
    finally:
        setattr(hashlib, "pbkdf2_hmac", slow)  # noqa: B010


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Restore the logging level after this block, which silences tasks of dead nodes while they end."""
    before = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(before)


def drop_what_was_abandoned(failure: BaseException | None) -> None:
    """Collect coroutines that never ended.  They complain, each in its way; all of it comes after the verdict."""
    if failure is not None:
        traceback.clear_frames(failure.__traceback__)
    hook = sys.unraisablehook
    sys.unraisablehook = _ignore
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _ignore(unraisable: object) -> None:
    """Drop the complaint of an abandoned coroutine."""
