"""Options that belong to single places of a URL: ``tcp://a:1?connection_timeout=5``.

Where they stand for a list, or for brokers that are discovered, each place has them (docs/design/client-discovery.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from meshq.endpoint import Endpoint
from meshq.errors import SettingsError

#: Option → how many of its units are a second.
PLACE_OPTIONS: Final[dict[str, float]] = {"connection_timeout": 1, "connectionTimeout": 1_000}
_ALLOWED: Final = "a number of seconds above 0, or inf"

Pairs = Sequence[tuple[str, str]]


def divided(pairs: Pairs) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the options of places, checked, and the other options of a URL.

    Raises:
        SettingsError: an option of places is wrong, or is given twice.
    """
    places = tuple(pair for pair in pairs if pair[0] in PLACE_OPTIONS)
    for key, text in places:
        _seconds(key, text)
    if len(places) > 1:
        key, text = places[1]
        raise SettingsError(key, text, "connection_timeout once")
    return places, tuple(pair for pair in pairs if pair[0] not in PLACE_OPTIONS)


def connection_timeout(endpoint: Endpoint) -> float:
    """Return the seconds in which a connection to a place has to come about; infinity unless its URL says so."""
    return next((_seconds(key, text) for key, text in endpoint.options if key in PLACE_OPTIONS), math.inf)


def _seconds(key: str, text: str) -> float:
    units = PLACE_OPTIONS[key]
    try:
        value = math.inf if units > 1 and text == "-1" else float(text) / units
    except ValueError:
        value = math.nan
    if not value > 0:
        raise SettingsError(key, text, _ALLOWED if units == 1 else "a number of milliseconds above 0, or -1")
    return value
