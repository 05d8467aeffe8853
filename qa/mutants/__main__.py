"""Make mutants of the product, one after the other, and see which of them its tests do not notice.

Each mutant is a copy of the product with one small change.  A test that fails, or takes ten times as long, has noticed
it; what no test of its unit notices, has survived, and is listed with its file and line.  Mutants are drawn by a seed,
and the same of them for the same commit: ``--resume`` goes on where a run was broken off.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from qa.mutants.operators import Mutant, mutants_of
from qa.results import RESULTS, about_here

ROOT: Final = Path(__file__).parents[2]
KIND: Final = "mutants"
#: Unit -> its sources, as patterns below ``src/meshq``, and the tests that have to notice.
UNITS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "wire": (("wire/_*.py",), ("tests/wire",)),
    "store": (("store/**/_*.py",), ("tests/store",)),
    "queue": (
        ("broker/queue/_*machine.py", "broker/queue/_priority_list*.py", "broker/queue/_message_counts.py"),
        ("tests/broker",),
    ),
    "selector": (
        ("selector/_*.py",),
        ("tests/selector", "tests/broker/test_queue_filters.py", "tests/broker/test_filters_of_queues.py"),
    ),
}
#: Mutants of each unit.
NUMBER: Final = 50
#: A run that takes so many times as long as that of the product itself does not end.
PATIENCE: Final = 10.0
#: What the tests find beside the sources.
BESIDE: Final = (
    "tests",
    "qa",
    "tools",
    "docs",
    "examples",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)


def sources_of(unit: str) -> list[Path]:
    """Return the files of a unit, sorted."""
    package = ROOT / "src" / "meshq"
    return sorted({file for pattern in UNITS[unit][0] for file in package.glob(pattern)})


def drawn(unit: str, number: int, seed: int) -> list[tuple[Path, Mutant]]:
    """Draw mutants of a unit: all places count alike."""
    texts = [(path, path.read_text(encoding="utf-8")) for path in sources_of(unit)]
    every = [(path, mutant) for path, text in texts for mutant in mutants_of(text)]
    return random.Random(f"{seed} {unit}").sample(every, min(number, len(every)))


@contextmanager
def copy_of_the_product() -> Iterator[Path]:
    """Make a folder with a copy of the sources, and all that tests need beside them."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        folder = Path(directory)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in BESIDE:
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)
        yield folder


def noticed(folder: Path, tests: Sequence[str], timeout_s: float | None) -> bool:
    """Run tests in a copy; returns whether one fails, or they do not end."""
    command = [sys.executable, "-B", "-m", "pytest", "-n0", "-x", "-q", "-m", "short", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])}
    try:
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


class MutantRun:
    """A run of mutants, whose results are written as soon as they are there."""

    def __init__(self, file: Path | None, found: dict[str, Any]) -> None:
        self._file = file
        self.found = found

    def play(self, unit: str, number: int, seed: int) -> None:
        """Play the mutants of a unit that were not played yet."""
        results: dict[str, bool] = self.found["units"].setdefault(unit, {})
        with copy_of_the_product() as folder:
            began = time.monotonic()
            if noticed(folder, UNITS[unit][1], None):
                raise SystemExit(f"{unit}: its tests fail without any change")
            timeout_s = PATIENCE * (time.monotonic() - began)
            for path, mutant in drawn(unit, number, seed):
                where = path.relative_to(ROOT)
                name = f"{where}:{mutant}"
                if name in results:
                    continue
                text = path.read_text(encoding="utf-8")
                (folder / where).write_text(mutant.applied(text), encoding="utf-8")
                results[name] = noticed(folder, UNITS[unit][1], timeout_s)
                (folder / where).write_text(text, encoding="utf-8")
                if not results[name]:
                    sys.stdout.write(f"survived: {name}\n")
                    sys.stdout.flush()
                self.save()
        score = sum(results.values()) / max(1, len(results))
        sys.stdout.write(f"{unit}: {sum(results.values())} of {len(results)} were noticed, {score:.0%}\n")

    def save(self) -> None:
        """Write the results down."""
        if self._file is not None:
            self._file.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qa.mutants", description=__doc__)
    parser.add_argument("--unit", action="append", choices=list(UNITS), help="only this one; may be given again")
    parser.add_argument("--number", type=int, default=NUMBER, metavar="N", help="mutants of each unit (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which are drawn (%(default)s)")
    parser.add_argument("--result", metavar="NAME", help=f"write {RESULTS}/NAME.json")
    parser.add_argument("--resume", action="store_true", help="go on with the results that are there")
    options = parser.parse_args(arguments)
    file = Path(RESULTS, f"{options.result}.json") if options.result else None
    found: dict[str, Any] = {"kind": KIND, "format": 1, "seed": options.seed, **about_here(), "units": {}}
    if options.resume and file is not None and file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if (before["commit"], before["seed"]) == (found["commit"], options.seed):
            found = before
    run = MutantRun(file, found)
    for unit in options.unit or UNITS:
        run.play(unit, options.number, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
