"""The units that have mutants: their files, the tests that have to notice, and which mutants are drawn."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import attrs

from qa.mutants.operators import Mutant, mutants_of

ROOT: Final = Path(__file__).parents[2]


@attrs.frozen
class Unit:
    """Files of the product, as patterns below ``src/meshq``, and folders or files of tests."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


UNITS: Final[dict[str, Unit]] = {
    "wire": Unit(("wire/_*.py",), ("tests/wire",)),
    "store": Unit(("store/**/_*.py",), ("tests/store",)),
    "queue": Unit(
        ("broker/queue/_*machine.py", "broker/queue/_priority_list*.py", "broker/queue/_message_counts.py"),
        ("tests/broker",),
    ),
    "selector": Unit(
        ("selector/_*.py",),
        ("tests/selector", "tests/broker/test_queue_filters.py", "tests/broker/test_filters_of_queues.py"),
    ),
}


@attrs.frozen
class Drawn:
    """A mutant of a file, by the path of the file below the root."""

    path: str
    mutant: Mutant

    def __str__(self) -> str:
        return f"{self.path}:{self.mutant}"

    @property
    def text(self) -> str:
        """The line of the file where the change begins."""
        lines = (ROOT / self.path).read_text(encoding="utf-8").splitlines()
        return lines[self.mutant.line - 1].strip()


def sources_of(unit: str) -> list[Path]:
    """Return the files of a unit, sorted.  A ``__main__.py`` is a command and belongs to no unit."""
    package = ROOT / "src" / "meshq"
    found = {file for pattern in UNITS[unit].sources for file in package.glob(pattern)}
    return sorted(file for file in found if not file.name.startswith("__"))


def digests_of(unit: str) -> dict[str, str]:
    """Return a short digest of each file of a unit.  The results for another text of a file do not count."""
    return {
        str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in sources_of(unit)
    }


def drawn(unit: str, number: int, seed: int) -> list[Drawn]:
    """Draw mutants of a unit: all places count alike.

    The order is that of a hash of each mutant.  So a larger number draws the same mutants and some more, and a change
    of one file draws others from that file alone.
    """
    every = [
        Drawn(str(file.relative_to(ROOT)), mutant)
        for file in sources_of(unit)
        for mutant in mutants_of(file.read_text(encoding="utf-8"))
    ]
    return sorted(every, key=lambda one: hashlib.sha256(f"{seed} {one}".encode()).digest())[:number]
