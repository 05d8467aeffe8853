"""When a backup with a store of its own may end for good, and how the directories of backups are named; plain Python.

::

    DIR/colocated_backup_<n>/              the backup with that number, with its store
    DIR/oldreplica.colocated_backup_<n>/   one that has ended for good
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.errors import SettingsError

#: What the names of backups begin with; their number follows.
PREFIX: Final = "colocated_backup_"
#: What the directory of a backup begins with that has ended for good.
ASIDE: Final = "oldreplica."
_EPOCH_CHARACTERS_MAX: Final = 20


def backup_number(name: str) -> int:
    """Return the number in the name of a directory of a backup; 0: it is none."""
    digits = name.removeprefix(ASIDE).removeprefix(PREFIX)
    plain = digits.isascii() and digits.isdigit() and not digits.startswith("0")
    return int(digits) if plain and name.endswith(f"{PREFIX}{digits}") else 0


def latest_number(names: Iterable[str]) -> int:
    """Return the highest number that a host has given, by the names of its directories; 0: it has given none."""
    return max(map(backup_number, names), default=0)


def is_left_behind(*, epoch: int, acted: bool, claimed: bool, node_epoch: int) -> bool:
    """Whether the store of a backup has nothing that its node does not have, which serves and has another replica.

    ``epoch``, ``acted``, ``claimed``: as in the memory of the backup, which does not run.  ``node_epoch``: the one in
    which its node serves.
    """
    return not claimed and (epoch < node_epoch or (epoch == node_epoch and not acted))


def encode_epoch(epoch: int) -> bytes:
    """Return the bytes by which a node says in which epoch it serves."""
    return b"%d" % epoch


def decode_epoch(data: bytes) -> int:
    """Read them.  Raises: SettingsError: they are none."""
    if not data.isdigit() or len(data) > _EPOCH_CHARACTERS_MAX:
        raise SettingsError("request", "***", "the epoch of the node that asks, in digits")
    return int(data)
