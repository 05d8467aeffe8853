"""The bytes of its records that the owner of a journal needs at a start.

Most records are message bodies, which a start does not need.  The owner says how many bytes of a payload's beginning
it needs; the index of the segment holds these bytes, and the rest is read on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from meshq.abc import Buffer


@attrs.frozen
class RecordPrefix:
    """How an owner shortens the payloads of its records.

    ``of`` is given a kind and a payload, and returns how many bytes of its beginning are kept, and whether the owner
    needs no more of a live record.  Of a deleted record the kept bytes are enough.  ``of`` is a pure function; another
    function has another ``form``, 1 to 2**32 - 1.
    """

    form: int
    of: Callable[[int, Buffer], tuple[int, bool]]


def _nothing(kind: int, payload: Buffer) -> tuple[int, bool]:
    return 0, False


#: For an owner that reads whole records.
NO_PREFIX: Final = RecordPrefix(0, _nothing)
