"""The records of a journal, as they are appended and as they are read."""

from __future__ import annotations

from typing import Final, NamedTuple

import attrs

#: The kind of tombstones that the store writes for itself; the owner never sees them.
INTERNAL: Final = 0
#: The kind of the records of ``Journal.append``; all other kinds are the owner's.
PLAIN: Final = 1
KIND_MAX: Final = 255


class CheckpointRecord(NamedTuple):
    """A record of the owner's checkpoint that has no position yet."""

    kind: int
    payload: bytes


@attrs.define
class JournalRecord:
    """A record of the journal, as it was appended."""

    position: int
    kind: int
    payload: bytes
    #: Positions of the records that this record deletes.
    deletes: tuple[int, ...] = ()
    #: Positions of the records that this record refers to.
    refs: tuple[int, ...] = ()
    #: True: kept only as long as one of its targets is.  False: a data record, live until a record deletes it.
    tombstone: bool = False
    #: A data record that another record has deleted.
    deleted: bool = False
    #: Bytes at the end of the payload that were not read, because the owner does not need them at a start.
    missing: int = 0
