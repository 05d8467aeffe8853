"""Texts about pins: letters with as many sentences as one frame has room for, and the record of introduced nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from meshq.cluster.grouping._arbiter_machine import KINDS, Said
from meshq.errors import UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import decode_map, encode_map

#: Bytes of names in one letter.
LETTER_BYTES_MAX: Final = 2_000
#: Bytes of the record of who has introduced itself, without its keys.
KEPT_BYTES_MAX: Final = 6_000


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
    return _identity(text, "is of a life")


def members_of(text: str, sender: str) -> frozenset[str]:
    """Read the ids of the members that the sender of a letter knows, which are kept.

    Raises:
        UsageError: one is none, or the sender is not among them.
    """
    members = frozenset(_identity(one, "names a member") for one in text.split())
    if sender not in members:
        raise UsageError(f"a letter about pins names members, of which its sender {sender[:64]!r} is none")
    return members


def _identity(text: str, what: str) -> str:
    if len(text) != 2 * IDENTITY_BYTES or text.strip("0123456789abcdef"):
        raise UsageError(f"a letter about pins {what} {text[:64]!r}, not {2 * IDENTITY_BYTES} hexadecimal digits")
    return text


# -- the record of who has introduced itself


def kept(introduced: Mapping[frozenset[str], Mapping[str, str]]) -> tuple[str, str]:
    """Write a record of introduced nodes: the members that were known, and the nodes that knew them, with their lives.

    Nodes that knew other members than most are left out where the record has no room, and have to introduce themselves
    again to the next life.
    """
    texts = [
        (" ".join(sorted(members)), " ".join(f"{node} {life}" for node, life in sorted(lives.items())))
        for members, lives in sorted(introduced.items(), key=lambda one: (-len(one[1]), sorted(one[0])))
    ]
    sizes = accumulate(len(members) + len(lives) + 2 for members, lives in texts)
    found = [text for text, size in zip(texts, sizes, strict=True) if size <= KEPT_BYTES_MAX]
    return ",".join(members for members, _ in found), ",".join(lives for _, lives in found)


def restored(members: str, lives: str) -> Iterator[tuple[frozenset[str], dict[str, str]]]:
    """Read a record of introduced nodes."""
    for known, nodes in zip(members.split(","), lives.split(","), strict=True) if lives else ():
        pairs = nodes.split()
        yield frozenset(known.split()), dict(zip(pairs[::2], pairs[1::2], strict=True))
