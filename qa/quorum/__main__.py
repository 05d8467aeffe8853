"""The command that runs schedules of a quorum: ``python -m qa.quorum --schedules 100000 --result quorum --resume``.

A line for each schedule that fails; the exit status is 1 then.  ``--result NAME`` writes the run down as it goes, and
``--resume`` goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any, Final

from qa.arguments import COUNT, NATURAL
from qa.quorum.schedule import run_schedule
from qa.results import NUMBER, ResultFile, ResultFormat, about_here, add_result_option, with_commit

FORMAT: Final = ResultFormat(
    "quorum",
    parts="runs",
    part_fields={"first": int, "schedules": int, "cpu_s": NUMBER, "failed": list, "counts": dict, "commits": list},
)
#: How many schedules are run before they are written down.
PART: Final = 500


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.quorum", description=__doc__)
    parser.add_argument("--schedules", type=COUNT, default=2_000, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--first", type=NATURAL, default=0, metavar="S", help="the first of them (%(default)s)")
    add_result_option(parser, FORMAT)
    parser.add_argument("--resume", action="store_true", help="go on with the run of the result")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.resume and not options.result:
        parser().error("--resume goes on with what is in a result: name it by --result")
    file: ResultFile | None = options.result
    about = {"first": options.first}
    run: dict[str, Any] = {**about, "schedules": 0, "cpu_s": 0.0, "failed": [], "counts": {}}
    run["commits"] = []
    if options.resume and file is not None:
        run = file.run_of(about) or run
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
        if file is not None:
            command = f"python -m qa.quorum --first {options.first} --schedules {options.schedules}"
            run = {**run, "command": command, **about_here()}
            run["commits"] = with_commit(run["commits"], run["commit"])
            file.put_run(about, run)
    sys.stdout.write(f"{run['schedules']} schedules, {len(run['failed'])} failed, {run['cpu_s']} processor seconds\n")
    return 1 if run["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
