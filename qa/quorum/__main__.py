"""The command that runs schedules of a quorum: ``python -m qa.quorum --schedules 100000 --result quorum --resume``.

A line for each schedule that fails; the exit status is 1 then.  ``--result NAME`` writes the run down as it goes, and
``--resume`` goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from qa.quorum.schedule import run_schedule
from qa.results import RESULTS, about_here

#: How many schedules are run before they are written down.
PART: Final = 500


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.quorum", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first of them (%(default)s)")
    parser.add_argument("--result", metavar="NAME", help=f"write the run down in {RESULTS}/NAME.json")
    parser.add_argument("--resume", action="store_true", help="go on with the run of the result")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status."""
    options = parser().parse_args(arguments)
    path = Path(RESULTS) / f"{options.result}.json" if options.result else None
    run: dict[str, Any] = {"first": options.first, "schedules": 0, "cpu_s": 0.0, "failed": [], "counts": {}}
    run["commits"] = []
    if options.resume and path is not None and path.exists():
        (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    while run["schedules"] < options.schedules:
        begin = run["first"] + run["schedules"]
        part = min(PART, options.schedules - run["schedules"])
        cpu, counts = time.process_time(), Counter[str](run["counts"])
        for seed in range(begin, begin + part):
            history = run_schedule(seed)
            counts.update(history.counts)
            if history.problems:
                run["failed"].append(seed)
                sys.stdout.write(f"schedule {seed}: {history.problems[0]}\n")
        run["schedules"] += part
        run["cpu_s"] = round(run["cpu_s"] + time.process_time() - cpu, 1)
        run["counts"] = dict(sorted(counts.items()))
        if path is not None:
            run = {**run, "command": "python -m qa.quorum", **about_here()}
            if run["commit"] not in run["commits"]:
                run["commits"] = [*run["commits"], run["commit"]]
            result = {"kind": "quorum", "format": 1, "runs": [run]}
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{run['schedules']} schedules, {len(run['failed'])} failed, {run['cpu_s']} processor seconds\n")
    return 1 if run["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
