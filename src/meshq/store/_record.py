"""What goes into the journal and what comes out of it."""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

#: The kind of notes that the store writes for itself; nobody is handed those.
INTERNAL: Final = 0
#: The kind of what ``Journal.append`` writes; the others are the owner's.
PLAIN: Final = 1
KIND_MAX: Final = 255


class CheckpointRecord(NamedTuple):
    """A record that has no position yet."""

    kind: int
    payload: bytes


@attrs.define
class Record:
    """A record of the journal, as it was placed."""

    position: int
    kind: int
    payload: bytes
    #: Positions that it made dead.
    deletes: tuple[int, ...] = ()
    #: Positions that it speaks about.
    refs: tuple[int, ...] = ()
    #: A record that is kept only as long as one of its targets is; False: live until a record deletes it.
    tombstone: bool = False
    #: A root that has been killed.
    deleted: bool = False
    #: Bytes at the end of the payload that are not here: the owner needs no more of it at a start.
    missing: int = 0
