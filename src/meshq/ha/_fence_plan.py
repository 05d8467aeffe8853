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


class OwnerWatch:
    """Whether the node that has the store hangs: it has not renewed its lease for as long as that lasts.

    Clocks of hosts differ, so this is the time for which the node that looks has seen the same word of the owner.
    """

    def __init__(self) -> None:
        self._owner: Owner | None = None
        self._since = 0.0

    def look(self, owner: Owner | None, now: float) -> bool:
        """Compare the word of the owner with that seen before; return whether the owner hangs."""
        if owner != self._owner:
            self._owner, self._since = owner, now
        return owner is not None and not owner.released and now - self._since > owner.lease_ms / 1000
