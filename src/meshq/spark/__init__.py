"""Spark reads queues and writes to addresses: ``format("meshq")``; and ``drain``, which empties a queue.

Importing this loads neither Spark nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from meshq.spark._drain import DrainReport as DrainReport
    from meshq.spark._drain import drain as drain

__all__ = ["DrainReport", "drain"]

_HOME: Final = "meshq.spark._drain"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'meshq.spark' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME), name)
    globals()[name] = value
    return value
