"""Types for ``argparse``: a wrong argument ends a command with a message and the exit status 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of a whole number that is not less than this."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


#: How many: seeds, processes, seconds.
COUNT: Final = at_least(1)
#: A seed, or the number of one of many.
NATURAL: Final = at_least(0)


def existing_file(text: str) -> Path:
    """Return the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path
