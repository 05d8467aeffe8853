"""Whether the directories that a store is opened with are those where it is.

A wrong directory is not seen by itself: an empty one looks like a store that has just begun, and a broker would come
up with nothing, beside all that it had.  So what lies outside is written down in the store's own directory, and a
change is believed only if it is one: nothing is left where a part was, and something is where it is said to be.
Pages are not written down: they are of no account to the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from meshq.errors import SettingsError

#: What is written down, and what a store that exists has files in.
KEPT: Final = ("bindings", "journal", "large_messages")
_NEVER_EMPTY: Final = ("bindings", "journal")

Places = Mapping[str, str]
#: Whether a directory has files of a store in it; None: it is not there, or was never opened by one.
Holds = Callable[[str], bool | None]


def check_relocation(old: Places, new: Places, holds: Holds, *, outside: frozenset[str]) -> None:
    """Raise ``SettingsError`` unless the parts of a store that was in ``old`` are in ``new``; ``outside`` its own.

    ``old`` of a store that is opened for the first time is where it would be.
    """
    for part in KEPT:
        if old[part] == new[part]:
            if part in outside and holds(new[part]) is None:
                raise _refusal(part, new[part], "there, with what the store has in it; is its disk mounted?")
        elif holds(old[part]):
            raise _refusal(part, new[part], f"{old[part]}, where it is; or move all that is there, the broker stopped")
    if old == new:
        return
    # Whether the store has begun is seen where nothing was changed.
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
