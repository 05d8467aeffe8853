"""The command that shows that a seed has one story: ``python -m qa.traces --stage mesh --result traces --resume``.

Each seed is run in two processes whose hashes of strings differ, and has to have the same trace in both.  A line for
each seed that has two; the exit status is 1 then.  ``--result NAME`` writes the run down as it goes, and ``--resume``
goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from qa.results import RESULTS, about_here
from qa.seeds import BROKER, STAGES, SeedReport, many_seeds

#: What the hashes of strings begin with, in each of the two processes.
HASH_SEEDS: Final = ("1", "2")
#: How many seeds are run before they are written down.
PART: Final = 20


def different(ones: Sequence[SeedReport], others: Sequence[SeedReport]) -> list[int]:
    """The seeds that have two stories: another trace, or another end."""
    return [
        one.seed
        for one, other in zip(ones, others, strict=True)
        if (one.trace, one.turns, one.caught_by) != (other.trace, other.turns, other.caught_by)
    ]


@contextmanager
def _hashes_of(hash_seed: str) -> Iterator[None]:
    """Let the processes that are begun meanwhile have these hashes of strings."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = hash_seed
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def twice(seeds: Sequence[int], jobs: int, stage: str) -> tuple[list[SeedReport], list[SeedReport]]:
    """Run seeds twice, with hashes of strings that differ."""
    reports = []
    for hash_seed in HASH_SEEDS:
        with _hashes_of(hash_seed):
            reports.append(list(many_seeds(seeds, jobs, stage)))
    ones, others = reports
    return ones, others


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m qa.traces", description=__doc__)
    made.add_argument("--stage", choices=sorted(STAGES), default=BROKER, help="the simulation (%(default)s)")
    made.add_argument("--seeds", type=int, default=200, metavar="N", help="how many (%(default)s)")
    made.add_argument("--first", type=int, default=0, metavar="S", help="the first of them (%(default)s)")
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (%(default)s)")
    made.add_argument("--result", metavar="NAME", help=f"write the run down in {RESULTS}/NAME.json")
    made.add_argument("--resume", action="store_true", help="go on with the run of the result")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if a seed has two stories."""
    options = parser().parse_args(arguments)
    path = Path(RESULTS) / f"{options.result}.json" if options.result else None
    about = {"stage": options.stage, "first": options.first}
    runs: list[dict[str, Any]] = []
    if path is not None and path.exists():
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    others = [run for run in runs if not about.items() <= run.items()]
    same = [run for run in runs if about.items() <= run.items()]
    run: dict[str, Any] = {**about, "seeds": 0, "different": [], "cpu_s": 0.0, "commits": []}
    if options.resume and same:
        (run,) = same
    while run["seeds"] < options.seeds:
        begin = run["first"] + run["seeds"]
        part = range(begin, begin + min(PART, options.seeds - run["seeds"]))
        found = twice(part, options.jobs, options.stage)
        for seed in (unlike := different(*found)):
            sys.stdout.write(f"seed {seed} has two stories\n")
        here = about_here()
        run = {
            "command": f"python -m qa.traces --stage {options.stage} --first {options.first} --seeds {options.seeds}",
            **here,
            **about,
            "hash_seeds": list(HASH_SEEDS),
            "seeds": run["seeds"] + len(part),
            "different": [*run["different"], *unlike],
            "cpu_s": round(run["cpu_s"] + sum(report.cpu_s for reports in found for report in reports), 1),
            "commits": run["commits"] + ([here["commit"]] if here["commit"] not in run["commits"] else []),
        }
        if path is not None:
            result = {"kind": "traces", "format": 1, "runs": [*others, run]}
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{run['seeds']} seeds, {len(run['different'])} with two stories, {run['cpu_s']} s\n")
    return 1 if run["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
