"""The frames of a test that are the user's own: the part of a traceback, and of a waiting task, that says something."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import trio

#: Packages between the call of a test and its first line, and between its last line and what it waits for.
BETWEEN: Final = frozenset({"_pytest", "contextlib", "meshq", "outcome", "pluggy", "pytest_trio", "trio"})
#: Tasks that a report names.
TASKS_SHOWN_MAX: Final = 8


def trimmed(error: BaseException) -> BaseException:
    """Return an error whose traceback begins with the first frame that is the user's, if one is."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and not _is_own(trace.tb_frame):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


def waiting_lines() -> list[str]:
    """Return a line for each task that runs code of the user's: where it waits."""
    lines: list[str] = []
    for task in _tasks():
        own = [(frame, line) for frame, line in task.iter_await_frames() if _is_own(frame)]
        if own:
            frame, line = own[-1]
            path = frame.f_code.co_filename
            text = linecache.getline(path, line).strip()
            lines.append(f"waits: {Path(path).name}:{line} in {frame.f_code.co_qualname}: {text}")
    more = len(lines) - TASKS_SHOWN_MAX
    return lines if more <= 0 else [*lines[:TASKS_SHOWN_MAX], f"and {more} more tasks"]


def _tasks() -> Iterator[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop(0)
        yield task
        for nursery in task.child_nurseries:
            # In an order that is the same each time.
            waiting += sorted(nursery.child_tasks, key=lambda one: one.name)


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in BETWEEN
