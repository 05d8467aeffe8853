"""Durations and sizes as people write them: ``"5 s"``, ``"10 MiB"``.

Numbers are seconds and bytes, as everywhere.  ``MB`` is a thousand thousand to some and 1,048,576 to others, so it is
refused, like ``m``.
"""

from __future__ import annotations

import math
import re
from typing import Final

SECONDS: Final = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
BYTES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_DURATIONS: Final = ("timeout", "interval", "delay", "period", "ttl", "lease", "session", "tick", "wait")
#: What ends like a duration, and is a plain number.
_PLAIN: Final = ("network_ttl",)
_SIZES: Final = ("bytes", "memory_limit", "window_size", "message_size")


def units_of(name: str) -> dict[str, float] | None:
    """Return the units of a number by the last words of its setting's name; None for a plain number."""
    if name in _PLAIN:
        return None
    for endings, units in ((_DURATIONS, SECONDS), (_SIZES, BYTES)):
        if any(f"_{name}".endswith(f"_{ending}") for ending in endings):
            return dict(units)
    return None


def in_units(text: str, units: dict[str, float]) -> float | None:
    """A number of seconds or bytes from a text; None if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    if found is None or found[2] not in units:
        return None
    number, unit = float(found[1]), units[found[2]]
    if math.isinf(number):
        return None
    # Dividing is exact where multiplying by a thousandth is not.
    value = number / 1_000 if found[2] == "ms" else number * unit
    if value == math.inf:
        # Digits beyond what a number can hold; what has no end is written ``inf``.
        return None
    return int(value) if value == int(value) else value
