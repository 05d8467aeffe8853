"""Two commits of meshq under the same workloads, in turn: is a row slower than it was?

The workloads, and the code that runs them, are always this checkout's; only the product differs.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from benchmarks import results
from benchmarks.processes import ROOT, BenchmarkError, scratch
from benchmarks.row import Row
from benchmarks.runner import Figures, measure_undisturbed
from benchmarks.workload import Workload

KIND = "comparison"
NAME = "against"
#: The two sides, as the result file calls them.
SIDES = ("ours", "against")
#: Fewer say nothing about machines that do other things, too.
PAIRS_MIN = 5
#: The rate of a row, over what it was, below which it is called down.
DOWN = 0.97

Run = Callable[[str, Workload], Figures]
#: A ratio that every row has that tells what its processes cost.
CPU = "cpu_us"


@contextmanager
def checked_out(commit: str) -> Iterator[tuple[str, Path]]:
    """The commit that is meant by a name of git's, and a folder with its product, gone afterwards.

    Raises:
        ValueError: there is no such commit here.
    """
    full = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}").decode().strip()
    if not full:
        raise ValueError(f"--against {commit}: this repository has no such commit")
    packed = _git("archive", full, "src/meshq")
    if not packed:
        raise ValueError(f"--against {commit}: that commit has no src/meshq")
    with scratch() as directory:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            # The first releases of Python 3.11 know no filters; what is packed is our own.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(directory)
        yield full[:12], directory / "src"


def _git(*arguments: str) -> bytes:
    """What git says, or nothing if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else b""


def opened(commit: str, name: str, *, replace: bool, directory: Path = results.DIRECTORY) -> dict[str, Any]:
    """The comparison to add to: one of the same two commits on the same machine goes on, another is refused."""
    same = ("commit", "against", "machine", "versions")
    return results.continued(empty(commit, name), same, replace=replace, directory=directory)


def empty(commit: str, name: str = NAME) -> dict[str, Any]:
    """A comparison without rows."""
    return results.empty(name, KIND) | {"against": commit}


def run_pairs(
    row: Row, workload: Workload, product: Path, pairs: int, run_one: Run = measure_undisturbed
) -> tuple[results.Runs, int]:
    """Both sides in turn, each first in every other pair; a pair of which one fails is said, counted and left out."""
    of_side = {"ours": workload, "against": attrs.evolve(workload, product=str(product))}
    runs: results.Runs = []
    failed = 0
    for pair in range(pairs):
        run: dict[str, Figures] = {}
        for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
            try:
                run[side] = with_cpu(run_one("ours", of_side[side]))
            except BenchmarkError as error:
                failed += 1
                print(f"{row.key} {side}: {error}", file=sys.stderr)
        if len(run) == len(SIDES):
            runs.append(run)
            shown = ", ".join(f"{name} x{run['ours'][name] / run['against'][name]:.3f}" for name in compared(row, run))
            print(f"{row.key} {pair + 1}/{pairs}: {shown}", file=sys.stderr, flush=True)
    return runs, failed


def with_cpu(figures: Figures) -> Figures:
    """All processes together: what a message costs, whatever else the machine does meanwhile."""
    each = [value for name, value in figures.items() if name.endswith("_cpu_us")]
    return figures | {CPU: sum(each)} if each else figures


def compared(row: Row, run: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The figures of a run that both sides have: those of the row, the CPU time, and each process's share of it."""
    names = dict.fromkeys([*(line.metric for line in row.lines), CPU])
    names |= dict.fromkeys(name for name in run["ours"] if name.endswith("_cpu_us"))
    return [name for name in names if run["ours"].get(name) is not None and run["against"].get(name)]


def add(result: dict[str, Any], row: Row, runs: results.Runs) -> None:
    """Add pairs of a row, and make its medians and ratios again; a ratio is taken within its pair."""
    entry = result["rows"].setdefault(row.key, {"runs": [], "median": {}, "ratio": {}})
    entry["runs"].extend({side: results.rounded(figures) for side, figures in run.items()} for run in runs)
    every = entry["runs"]
    entry["median"] = {side: results.medians([run[side] for run in every]) for side in SIDES}
    names = [name for name in compared(row, every[0]) if all(name in compared(row, run) for run in every)]
    entry["ratio"] = {name: spread([run["ours"][name] / run["against"][name] for run in every]) for name in names}
    if is_down(entry) is not None:
        entry["down"] = is_down(entry)


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """The middle and the ends."""
    return results.rounded({"median": statistics.median(ratios), "minimum": min(ratios), "maximum": max(ratios)})


def is_down(entry: Mapping[str, Any]) -> bool | None:
    """Whether a row's rate is more than a tenth down; None: it has no rate."""
    ratio = entry["ratio"].get("rate")
    return None if ratio is None else ratio["median"] < DOWN
