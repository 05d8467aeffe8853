"""Offsets of a streaming read, as Spark keeps them in its checkpoint; and the places that options name.

Spark compares offsets as text, so the same places must always be written in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from meshq.errors import SettingsError

#: The version of offsets that this side writes; it reads it and every older one.
VERSION: Final = 1
#: In options, as with Kafka.
_EARLIEST: Final = -2
_LATEST: Final = -1
_ALLOWED: Final = 'earliest, latest, or JSON such as {"orders@NODE": 1200, "bills": -2} (-2: earliest, -1: latest)'
_PARTS: Final = ("e", "f", "n", "p")


def key_of(queue: str, node: str) -> str:
    """The name of a partition: a queue on a node."""
    return f"{queue}@{node}"


def parts_of(key: str) -> tuple[str, str]:
    """The queue and the node of a partition."""
    queue, _, node = key.rpartition("@")
    return queue, node


@attrs.frozen
class Place:
    """A place in a partition: the sequence to read ``next``, and constant facts.

    ``epoch``: of the cursor.  ``ordinal``: the number of the partition, in the order in which they were seen.
    ``first``: the sequence at which the cursor began.
    """

    epoch: int
    ordinal: int
    first: int
    next: int


@attrs.frozen
class Offset:
    """The places of a cursor in all partitions that it ever saw, by the names of these."""

    cursor: str
    places: Mapping[str, Place]

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark gets it, always in the same order."""
        keys = sorted(self.places)
        return {
            "c": self.cursor,
            "e": {key: self.places[key].epoch for key in keys},
            "f": {key: self.places[key].first for key in keys},
            "n": {key: self.places[key].ordinal for key in keys},
            "p": {key: self.places[key].next for key in keys},
            "v": VERSION,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any], cursor: str) -> Offset:
        """Read an offset of this cursor.

        Raises:
            SettingsError: it is of another cursor, of a newer version, or none.
        """
        version = data.get("v")
        if type(version) is not int or version < 1:
            raise SettingsError(
                "checkpointLocation", None, "a checkpoint of a meshq source", shown="an offset of another"
            )
        if version > VERSION:
            allowed = f"offsets of version {VERSION} or older: this checkpoint is of a newer meshq"
            raise SettingsError("checkpointLocation", None, allowed, shown=f"an offset of version {version}")
        if data.get("c") != cursor:
            raise SettingsError("cursor", cursor, f"{data.get('c')!r}, of which the checkpoint has the place")
        try:
            parts = {part: dict(data[part]) for part in _PARTS}
            places = {
                key: Place(parts["e"][key], parts["n"][key], parts["f"][key], next) for key, next in parts["p"].items()
            }
        except (KeyError, TypeError, ValueError):
            allowed = "a checkpoint that is whole"
            raise SettingsError("checkpointLocation", None, allowed, shown="an offset with missing parts") from None
        return cls(cursor, places)

    def moved(self, ends: Mapping[str, int]) -> Offset:
        """The offset with these partitions further on."""
        places = {key: attrs.evolve(place, next=ends.get(key, place.next)) for key, place in self.places.items()}
        return Offset(self.cursor, places)


def ranges_between(start: Offset, end: Offset) -> dict[str, tuple[int, int]]:
    """The sequences of each partition between two offsets, half open; only of partitions that have some."""
    found = {}
    for key, place in sorted(end.places.items()):
        known = start.places.get(key)
        lo = place.first if known is None else known.next
        if lo < place.next:
            found[key] = (lo, place.next)
    return found


@attrs.frozen
class Bounds:
    """Where to begin or to end, as an option says it: a word for all; a sequence or a word for a partition or queue."""

    option: str
    word: str
    places: Mapping[str, int | str]

    def at(self, queue: str, node: str) -> int | str:
        """The sequence, or the word, for one partition."""
        return self.places.get(key_of(queue, node), self.places.get(queue, self.word))

    def check_known(self, keys: Mapping[str, object]) -> None:
        """See that each partition or queue that is named is read.

        Raises:
            SettingsError: one is not.
        """
        names = set(keys) | {parts_of(key)[0] for key in keys}
        for name in self.places:
            if name not in names:
                raise SettingsError(
                    self.option, name, f"partitions and queues that are read: {', '.join(sorted(names))}"
                )


def bounds_of(option: str, text: str) -> Bounds:
    """Read ``startingOffsets`` or ``endingOffsets``.

    Raises:
        SettingsError: it is neither a word nor such JSON.
    """
    word = "earliest" if option == "startingOffsets" else "latest"
    lower = text.strip().lower()
    if lower in ("earliest", "latest"):
        if option == "endingOffsets" and lower == "earliest":
            raise SettingsError(option, text, "latest, or JSON")
        return Bounds(option, lower, {})
    try:
        data = json.loads(text)
    except ValueError:
        raise SettingsError(option, text, _ALLOWED) from None
    if type(data) is not dict or not data:
        raise SettingsError(option, text, _ALLOWED)
    places: dict[str, int | str] = {}
    for key, value in data.items():
        if type(value) is not int or not _EARLIEST <= value < 1 << 63 or value == 0:
            raise SettingsError(f"{option}[{key!r}]", value, "a sequence from 1, -2 (earliest) or -1 (latest)")
        if value > 0 and "@" not in key:
            raise SettingsError(f"{option}[{key!r}]", value, "-2 or -1 for a queue; a sequence is of queue@node")
        if option == "endingOffsets" and value == _EARLIEST:
            raise SettingsError(f"{option}[{key!r}]", value, "a sequence from 1, or -1 (latest)")
        places[key] = {_EARLIEST: "earliest", _LATEST: "latest"}.get(value, value)
    return Bounds(option, word, places)
