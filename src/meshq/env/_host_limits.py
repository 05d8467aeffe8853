"""The limits of this host for this process: memory and descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from meshq.limits import DESCRIPTORS_UNKNOWN, GIB

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

#: Assumed where the system tells nothing: small enough to be true of any machine that runs a broker.
MEMORY_BYTES_UNKNOWN = 1 * GIB

#: How many forks lie between this process and the one that imported us: like the names of brokers, it *is* the
#: process.
_FORKS: Final = [0]


def _forked() -> None:
    _FORKS[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def forks() -> int:
    """Return a number that differs between a forked child and its parent: tasks of the parent don't run in the
    child.
    """
    return _FORKS[0]


def descriptors() -> int:
    """Return how many files and connections this process may have open: its soft limit, as ``ulimit -n`` prints it."""
    if resource is None:
        return DESCRIPTORS_UNKNOWN
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_UNKNOWN if soft == resource.RLIM_INFINITY else soft


def memory_bytes(root: str = "/") -> int:
    """Return the bytes of memory that this process may use: the machine's, or less if a control group says so.

    ``root`` is where ``proc`` and ``sys`` are looked for.
    """
    bounds = [_physical(), *_control_group_limits(Path(root))]
    return min(bounds)


def _physical() -> int:
    """Return the memory of the machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return MEMORY_BYTES_UNKNOWN


def _control_group_limits(root: Path) -> Iterator[int]:
    """Yield the memory limits of this process's control group and of the groups around it.

    A container sees its own group as the root of the tree, or a path that does not exist inside of it; in
    both cases the limit stands at the root, which is therefore always asked.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if controllers == "":
            tree, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            tree, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path)
        for directory in (group, *group.parents):
            limit = _read_limit(tree / str(directory).lstrip("/") / name)
            if limit is not None:
                yield limit


def _read_limit(file: Path) -> int | None:
    """Read the number in a limit file; None without a file or a limit (``max``)."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
