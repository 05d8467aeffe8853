"""The command that shows that a seed has one story: ``python -m qa.traces --stage mesh --result traces --resume``.

Each seed is run in two processes whose hashes of strings differ, and has to have the same trace in both.  A line for
each seed that has two; the exit status is 1 then.  ``--result NAME`` writes the run down, twenty
seeds at a time, and ``--resume`` goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from qa.arguments import COUNT, NATURAL
from qa.results import NUMBER, ResultFile, ResultFormat, about_here, add_result_option, with_commit
from qa.seeds import BROKER, STAGES, SeedReport, many_seeds

FORMAT: Final = ResultFormat(
    "traces",
    parts="runs",
    part_fields={"stage": str, "first": int, "seeds": int, "different": list, "cpu_s": NUMBER, "commits": list},
)
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
    made.add_argument("--seeds", type=COUNT, default=200, metavar="N", help="how many (%(default)s)")
    made.add_argument("--first", type=NATURAL, default=0, metavar="S", help="the first of them (%(default)s)")
    made.add_argument("--jobs", type=COUNT, default=2, metavar="N", help="processes (%(default)s)")
    add_result_option(made, FORMAT)
    made.add_argument("--resume", action="store_true", help="go on with the run of the result")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if a seed has two stories."""
    options = parser().parse_args(arguments)
    if options.resume and not options.result:
        parser().error("--resume goes on with what is in a result: name it by --result")
    file: ResultFile | None = options.result
    about = {"stage": options.stage, "first": options.first}
    run: dict[str, Any] = {**about, "seeds": 0, "different": [], "cpu_s": 0.0, "commits": []}
    if options.resume and file is not None:
        run = file.run_of(about) or run
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
            "commits": with_commit(run["commits"], here["commit"]),
        }
        if file is not None:
            file.put_run(about, run)
    sys.stdout.write(f"{run['seeds']} seeds, {len(run['different'])} with two stories, {run['cpu_s']} s\n")
    return 1 if run["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
