"""Two stores of a pair compared: the live records of both, by position and digest, a stretch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from meshq.abc import Difference, RecordDigest
from meshq.wire import Logged, violation

POSITION_BYTES: Final = 8
DIGEST_BYTES: Final = 16
_PAIR_BYTES: Final = POSITION_BYTES + DIGEST_BYTES
#: The word of a replica that can't read its store.
FAILED: Final = "failed"


@attrs.frozen
class Compared:
    """The answer of a replica to the question of that ``number``.

    ``position``: of the first record that differs; 0: none does.  ``digest``: of that record at the replica; None: it
    has none.  ``failure``: why the replica can't say; empty: it can.
    """

    number: int = 0
    position: int = 0
    digest: bytes | None = None
    failure: str = ""


def answer_of(number: int, found: Difference | None) -> tuple[Logged, int]:
    """Return the answer of a replica, and its position."""
    if found is None:
        return Logged(kind="compared", number=number), 0
    text = "" if found.there is None else found.there.hex()
    return Logged(kind="compared", number=number, text=text), found.position


def failed_answer(number: int, error: Exception) -> Logged:
    """Return the answer of a replica that can't read its store."""
    return Logged(kind="compared", number=number, reason=FAILED, text=str(error)[:500] or type(error).__name__)


def read_answer(answer: Logged, position: int) -> Compared:
    """Read the answer of a replica.

    Raises:
        RemoteProtocolError: it is no such answer.
    """
    if answer.reason == FAILED:
        return Compared(answer.number, failure=answer.text)
    try:
        return Compared(answer.number, position, bytes.fromhex(answer.text) if answer.text else None)
    except ValueError:
        raise violation("bad_header", "a digest that is none") from None


def first_difference(here: Sequence[RecordDigest], there: Sequence[RecordDigest]) -> Difference | None:
    """Return the first position whose record is in one of two stretches only, or says something else; None: none."""
    own = {one.position: one.digest for one in here}
    other = {one.position: one.digest for one in there}
    differing = [at for at in own.keys() | other.keys() if own.get(at) != other.get(at)]
    if not differing:
        return None
    first = min(differing)
    return Difference(position=first, here=own.get(first), there=other.get(first))


def stretch(records: Sequence[RecordDigest], beyond: int, upto: int) -> list[RecordDigest]:
    """Return the records beyond a position, up to another one."""
    return [one for one in records if beyond < one.position <= upto]


def pack_digests(records: Sequence[RecordDigest]) -> bytes:
    """Return records as 24 bytes each: the position, little-endian, and the digest."""
    return b"".join(one.position.to_bytes(POSITION_BYTES, "little") + one.digest for one in records)


def unpack_digests(body: bytes) -> list[RecordDigest]:
    """Return the records of ``pack_digests``.

    Raises:
        RemoteProtocolError: the bytes are no such records.
    """
    if len(body) % _PAIR_BYTES:
        raise violation("bad_table", f"digests of records in {len(body)} bytes")
    return [
        RecordDigest(
            int.from_bytes(body[start : start + POSITION_BYTES], "little"),
            body[start + POSITION_BYTES : start + _PAIR_BYTES],
        )
        for start in range(0, len(body), _PAIR_BYTES)
    ]
