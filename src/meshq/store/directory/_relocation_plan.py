"""Whether the directories that a store is opened with are the ones that hold its files.

A wrong directory is not noticed by itself: an empty one looks like a new store, and a broker would come up without any
of its messages.  So the directories outside are written down in the store's own directory, and a change is accepted
only if the files were moved: the old directory is empty, and the new one has files.
Pages are not written down: the next start does not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from meshq.errors import SettingsError

#: The parts that are written down: an existing store has files in them.
KEPT: Final = ("bindings", "journal", "large_messages")
_NEVER_EMPTY: Final = ("bindings", "journal")

Places = Mapping[str, str]
#: Whether a directory has files of a store; None: it does not exist, or no store was ever opened there.
Holds = Callable[[str], bool | None]


def check_relocation(old: Places, new: Places, holds: Holds, *, outside: frozenset[str]) -> None:
    """Raise ``SettingsError`` unless the parts of a store that was in ``old`` are in ``new``; ``outside`` its own.

    ``old`` of a new store are its default directories.
    """
    for part in KEPT:
        if old[part] == new[part]:
            if part in outside and holds(new[part]) is None:
                raise _refusal(part, new[part], "there, with what the store has in it; is its disk mounted?")
        elif holds(old[part]):
            raise _refusal(part, new[part], f"{old[part]}, where it is; or move all that is there, the broker stopped")
    if old == new:
        return
    # The unchanged directories show whether the store is new.
    stayed = [part for part in _NEVER_EMPTY if old[part] == new[part]]
    begun = any(holds(new[part]) for part in stayed or _NEVER_EMPTY)
    for part in KEPT:
        if old[part] == new[part]:
            continue
        if not begun and holds(new[part]):
            raise _refusal(part, new[part], "an empty directory: the store is new")
        if begun and part in _NEVER_EMPTY and not holds(new[part]):
            raise _refusal(part, new[part], "the one that the files of this store were moved to")


def _refusal(part: str, path: str, allowed: str) -> SettingsError:
    return SettingsError(f"directories.{part}", path, allowed)
