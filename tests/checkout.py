"""Processes that run the commands of ``qa``, from whatever folder."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def checkout_environment(**variables: str) -> dict[str, str]:
    """The environment of a process that imports ``qa``, which is not installed, from this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}
