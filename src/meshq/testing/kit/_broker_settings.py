"""The keywords of the broker in a test, out of the fixture ``meshq_settings``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from meshq.errors import SettingsError
from meshq.node import Broker
from meshq.testing.kit._cluster_settings import check_keywords

#: The broker has its name, and its outside, from the test.
FIXED: Final = ("self", "name", "env")


def broker_keywords(defaults: Mapping[str, Any], given: object) -> dict[str, Any]:
    """Return the keywords, the given ones in the place of the defaults.

    Raises:
        SettingsError: they are no dictionary, or one of them is none of a broker's.
    """
    if not isinstance(given, Mapping):
        raise SettingsError("meshq_settings", given, "a dictionary of keywords of Broker")
    check_keywords(given, [name for name in inspect.signature(Broker.__init__).parameters if name not in FIXED])
    return {**defaults, **given}
