"""The directories of a node that replicates: its store, a copy in the making, and the stores that it had before.

::

    DIR/journal bindings large paging   the store
    DIR/syncing/                        a copy in the making; no store
    DIR/oldreplica.<n>/                 the store before the n-th copy
    DIR/moves                           which parts are moved where; there while they are
    DIR/standing                        what the node remembers of its pair
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from typing import Final

import attrs

PARTS: Final = ("journal", "bindings", "large", "paging")
SYNCING: Final = "syncing"
MOVES: Final = "moves"
SAVED: Final = "oldreplica."


def saved_number(name: str) -> int | None:
    """Return the number of a saved store; None: the name is none of one."""
    digits = name.removeprefix(SAVED)
    if digits == name or not digits.isascii() or not digits.isdigit() or digits.startswith("0"):
        return None
    return int(digits)


@attrs.frozen
class Moves:
    """The renames by which a copy becomes the store, in their order: each from one path to another one."""

    pairs: tuple[tuple[str, str], ...]

    def encode(self) -> bytes:
        """Return the bytes of the file that says so."""
        return json.dumps({"moves": self.pairs}, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Moves | None:
        """Read the file; None: it was not written whole, so nothing was moved."""
        try:
            found = json.loads(data)["moves"]
            return cls(tuple((str(old), str(new)) for old, new in found))
        except (ValueError, KeyError, TypeError):
            return None


def plan_moves(names: Collection[str], copied: Collection[str]) -> Moves:
    """Plan the moves: the parts of the store to a directory for saved stores, and the parts of the copy to their place.

    ``names``: what is in the directory of the node; ``copied``: what is in that of the copy.
    """
    number = 1 + max((one for name in names if (one := saved_number(name)) is not None), default=0)
    old = [part for part in PARTS if part in names]
    pairs = [(part, f"{SAVED}{number}/{part}") for part in old]
    pairs += [(f"{SYNCING}/{part}", part) for part in PARTS if part in copied]
    return Moves(tuple(pairs))


def to_remove(names: Iterable[str], keep: float) -> list[str]:
    """Return the saved stores that are not kept, the oldest first.  ``keep``: how many are; infinite: all."""
    numbers = sorted(one for name in names if (one := saved_number(name)) is not None)
    if keep == math.inf:
        return []
    gone = numbers[: max(0, len(numbers) - int(keep))]
    return [f"{SAVED}{number}" for number in gone]
