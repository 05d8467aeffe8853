"""Where the store of another node may lie, whose backup a host runs; plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.errors import SettingsError

PLAIN: Final = "an absolute path without '..' and '~'"


def is_plain(path: str) -> bool:
    """Whether a path means the same everywhere: it begins at the root, and no part of it is replaced by another."""
    parts = path.split("/")
    return path.startswith("/") and ".." not in parts and not any(one.startswith("~") for one in parts)


def check_place(wanted: str, taken: Iterable[str], root: str) -> None:
    """Check the directory of a store.  ``taken``: those in use here.  ``root``: beneath which it lies; empty: anywhere.

    Raises:
        SettingsError: it may not lie there.
    """
    if not is_plain(wanted):
        raise SettingsError("data_dir", wanted, f"{PLAIN} for a node that asks for a backup")
    if any(_overlap(wanted, one) for one in taken):
        raise SettingsError("data_dir", wanted, "a directory of the node that asks, apart from those in use here")
    if root and not _beneath(wanted, root):
        raise SettingsError("data_dir", wanted, f"a directory beneath {root}, the shared_root of the host")


def _beneath(path: str, root: str) -> bool:
    first, second = _parts(path), _parts(root)
    return len(first) > len(second) and first[: len(second)] == second


def _overlap(one: str, other: str) -> bool:
    """Whether one of two directories is, or holds, the other one."""
    first, second = _parts(one), _parts(other)
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


def _parts(path: str) -> list[str]:
    found = ["/" if path.startswith("/") else "."]
    for part in path.split("/"):
        if part == "..":
            del found[max(1, len(found) - 1) :]
        elif part not in ("", "."):
            found.append(part)
    return found
