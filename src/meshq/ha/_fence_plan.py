"""The command that makes sure that a node is dead, with the words that stand for the node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from meshq.errors import SettingsError
from meshq.ha._owner_format import Owner

WORDS: Final = ("name", "host", "pid", "node_id", "epoch")
_WORD: Final = re.compile(r"\{([a-z_]*)\}")


def check_fence_command(command: object) -> tuple[str, ...] | None:
    """Return a command and its arguments, checked; None: there is none.

    Raises:
        SettingsError: it is no list of texts, or has a word in braces that stands for nothing.
    """
    if command is None:
        return None
    allowed = "a command and its arguments, as a list of texts, or None"
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        raise SettingsError("fence_command", command, allowed)
    if not command or not all(type(one) is str and "\0" not in one for one in command) or not command[0]:
        raise SettingsError("fence_command", command, allowed)
    for word in (word for one in command for word in _WORD.findall(one)):
        if word not in WORDS:
            known = ", ".join(f"{{{known}}}" for known in WORDS)
            raise SettingsError("fence_command", f"{{{word}}}", f"of words in braces: {known}")
    return tuple(command)


def fence_argv(command: Sequence[str], owner: Owner) -> tuple[str, ...]:
    """Return the command and its arguments for a node."""
    return tuple(_WORD.sub(lambda found: str(getattr(owner, found[1])), one) for one in command)


def is_overdue(owner: Owner | None, now_ms: int) -> bool:
    """Whether the lease of the node that has the store is over, by its own word: it hangs, or was stopped."""
    return owner is not None and not owner.released and owner.lease_until < now_ms
