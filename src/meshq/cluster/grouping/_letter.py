"""The text of a letter about pins: sentences about names, as many as one frame has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshq.cluster.grouping._arbiter_machine import KINDS, Said
from meshq.errors import UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import decode_map, encode_map

#: Bytes of names in one letter.
LETTER_BYTES_MAX: Final = 2_000


def divided(said: Sequence[Said]) -> list[list[Said]]:
    """Divide a long letter so that each part has room in a frame."""
    found: list[list[Said]] = []
    size = LETTER_BYTES_MAX
    for one in said:
        more = len(one.queue.encode()) + len(one.group.encode()) + len(one.node) + 32
        if size + more > LETTER_BYTES_MAX:
            found.append([])
            size = 0
        found[-1].append(one)
        size += more
    return found


def written(letter: Sequence[Said]) -> bytes:
    """Write the names of a letter."""
    values: dict[str, str] = {}
    for index, one in enumerate(letter):
        values.update((f"{key}{index}", value) for key, value in zip("kqgn", one, strict=True))
    return encode_map(values)


def read(data: bytes) -> list[Said]:
    """Read the names of a letter.

    Raises:
        UsageError: it says nothing that a node says.
    """
    values = decode_map(data, 2 * LETTER_BYTES_MAX)
    found = []
    for index in range(len(values) // 4):
        said = [values.get(f"{key}{index}") for key in "kqgn"]
        if said[0] not in KINDS or not all(isinstance(one, str) for one in said):
            raise UsageError(f"a letter about pins says something of a name that is none of {', '.join(KINDS)}")
        found.append(Said(*map(str, said)))
    return found


def life_of(text: str) -> str:
    """Check the id of a life, which is kept beside others; return it.

    Raises:
        UsageError: it is none.
    """
    if len(text) != 2 * IDENTITY_BYTES or text.strip("0123456789abcdef"):
        raise UsageError(f"a letter about pins is of a life {text[:64]!r}, not {2 * IDENTITY_BYTES} hexadecimal digits")
    return text
