"""What the owner of a journal needs of its records when it starts.

Most records are bodies of messages that nobody asks for at a start.  The owner says which beginning of a payload it
needs; that stands in the index of the segment, and the rest is read when it is wanted.
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
    needs no more of a living record.  Of a dead one what is kept is enough.  It is a pure function; another one has
    another ``form``, 1 to 2**32 - 1.
    """

    form: int
    of: Callable[[int, Buffer], tuple[int, bool]]


def _nothing(kind: int, payload: Buffer) -> tuple[int, bool]:
    return 0, False


#: Of an owner that reads what it needs.
NO_PREFIX: Final = RecordPrefix(0, _nothing)
