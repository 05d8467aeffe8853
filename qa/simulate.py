"""The command that runs seeds of the simulation.

``--mesh`` runs three brokers that are linked instead of one; ``--storage`` one of which only disk and power fail;
``--turns`` one that waits from time to time;
``--replicated`` one that does so and has a partner; ``--redistribution`` three that move messages to consumers;
``--discovery`` three that find each other; ``--drain`` three of which one hands its messages over to another one, and
goes; ``--ha`` two or three with one store; ``--pair`` two of which one follows the log of the other;
``--voted`` such a pair, and three others that vote about it;
``--colocated`` two processes with the backups of each other;
``--wide`` four to seven; ``--chain`` three to five in a chain or a ring;
``--balanced`` a front and five targets, or five brokers that balance each other; ``--grouping`` the protocol of message
groups alone, whose seeds take a tenth of a second.
``--seeds 200`` runs the seeds 0 to 199; a line for each that fails, with the command that runs it again; the exit
status is 1 then.  ``--seed 17`` runs one and tells its story.  ``--hunt`` writes failing seeds down, where the tests
find them.  ``--result NAME`` adds the run to a file of results, a few seeds at a time; with ``--resume`` the same
command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import meshq
from meshq.testing.history._end import HistoryError
from qa.arguments import COUNT, NATURAL
from qa.results import add_result_option
from qa.seed_runs import FORMAT, PART, SeedRun
from qa.seeds import BROKER, STAGES, SeedReport, Tally, many_seeds, one_seed, report_of

#: Seeds that CI runs, always the same.
SEEDS: Final = 200
#: Where failing seeds are written down, in the root of the project: each simulation has a file of its own.
FAILED_SEEDS: Final = "tests/data"
#: The simulations besides that of a single broker, and what is said about each.
ABOUT_STAGES: Final = {
    "mesh": "three brokers that are linked, not one",
    "wide": "four to seven brokers that are linked",
    "chain": "three to five brokers, each linked to its neighbours only, in a chain or a ring",
    "balanced": "a front and five targets, or five brokers that balance each other",
    "network": "a network of three to ten brokers, with connectors, producers and consumers that move",
    "fanout": "one client that sends to three separate brokers",
    "drain": "three linked brokers, of which one hands its messages over to another one, and goes for good",
    "redistribution": "three linked brokers, which move messages to each other's consumers",
    "discovery": "three linked brokers that are told nothing but a multicast group",
    "grouping": "the protocol of message groups alone, over links and queues of a model",
    "ha": "two or three brokers that share a store, of which one serves",
    "pair": "two brokers with a store each, of which one follows the log of the other",
    "provided": "two brokers with a store each, and a quorum that says which of them serves",
    "voted": "two brokers with a store each, and three others that vote about them",
    "colocated": "two processes, in each of which are a broker and the backup of the other one",
    "storage": "one broker of which the disk and the power fail, and nothing else",
    "turns": "one broker that has to step back from time to time",
    "replicated": "one broker that takes turns, too, and whose records have to be durable at a partner",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.simulate", description=__doc__)
    stages = parser.add_mutually_exclusive_group()
    for stage, about in ABOUT_STAGES.items():
        stages.add_argument(f"--{stage}", dest="stage", action="store_const", const=stage, default=BROKER, help=about)
    parser.add_argument("--seeds", type=COUNT, default=SEEDS, metavar="N", help="how many seeds (%(default)s)")
    parser.add_argument("--first", type=NATURAL, default=0, metavar="S", help="the first of them (%(default)s)")
    parser.add_argument("--seed", type=NATURAL, metavar="S", help="run this seed only, and tell its story")
    parser.add_argument("--jobs", type=COUNT, default=os.cpu_count() or 1, metavar="J", help="processes (all cores)")
    parser.add_argument("--until-failure", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--until", metavar="Q1,Q2", help="stop at the first seed in which one of these finds something")
    parser.add_argument("--hunt", action="store_true", help=f"add failing seeds to a file in {FAILED_SEEDS}")
    parser.add_argument("--record", metavar="FILE", help="the file to which --hunt adds them")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, and nothing else")
    add_result_option(parser, FORMAT, "add the run to")
    parser.add_argument("--resume", action="store_true", help="go on with the run of the result; needs --result")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 0, or 1 if a seed failed."""
    options = parser().parse_args(arguments)
    if options.resume and not options.result:
        parser().error("--resume goes on with what is in a result: name it by --result")
    stage: str = options.stage
    if options.seed is not None and not options.json:
        return _one(options.seed, stage)
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    run: SeedRun | None = None
    if options.result:
        said = sys.argv[1:] if arguments is None else arguments
        run = SeedRun(options.result, said, stage=stage, first=seeds[0], wanted=len(seeds), resume=options.resume)
        seeds = seeds[run.done :]
    tally = Tally()
    few = options.jobs < 2 or len(seeds) < 2
    here = (one_seed(seed, stage) for seed in seeds)
    failed_seeds = Path(options.record or failed_seeds_of(stage))
    for report in here if few else many_seeds(seeds, options.jobs, stage):
        tally.add(report)
        if run is not None and tally.seeds % PART == 0:
            run.write(figures(tally))
        if not options.json:
            _say_progress(report, tally)
        if not report.passed:
            if options.hunt:
                record(failed_seeds, report)
            wanted = (options.until or "").split(",")
            if options.until_failure or any(checker in wanted for checker in report.caught_by):
                break
    if options.json:
        _say(json.dumps(summary(tally)))
    else:
        _say(
            f"{tally.seeds} seeds, {len(tally.failed)} failed: {tally.simulated_s:.0f} simulated seconds, "
            f"{tally.confirmed} confirmed sends, {tally.faults} faults, {tally.cpu_s / max(tally.seeds, 1):.2f} "
            "processor seconds each"
        )
    if run is not None and tally.seeds:
        run.write(figures(tally))
    return 1 if tally.failed or (run is not None and run.failed) else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _say_progress(report: SeedReport, tally: Tally) -> None:
    if not report.passed:
        _say(report.line)
    elif tally.seeds % 100 == 0:
        _say(f"... {tally.seeds} seeds, {len(tally.failed)} failed")


def _one(seed: int, stage: str) -> int:
    """Run a seed, with everything that helps to understand it."""
    result = STAGES[stage](seed)
    report = report_of(result, 0.0, stage)
    if result.value is not None:
        for at_s, what in result.value.history.notes:
            _say(f"{at_s:10.4f} {what}")
    for kind, number in report.counters.items():
        if number:
            _say(f"{number:10} {kind}")
    _say(f"trace {report.trace}, {report.turns} turns, {report.simulated_s:.1f} simulated seconds")
    if report.passed:
        _say(f"seed {seed} passed: {report.confirmed} confirmed sends, {report.faults} faults")
        return 0
    _say(f"seed {seed} FAILED: {', '.join(report.caught_by)}")
    _say(str(result.failure) if isinstance(result.failure, HistoryError) else report.failure)
    return 1


def failed_seeds_of(stage: str) -> str:
    """The file with the seeds of a simulation that ever failed."""
    return f"{FAILED_SEEDS}/failed_seeds.txt" if stage == BROKER else f"{FAILED_SEEDS}/failed_{stage}_seeds.txt"


def record(path: Path, report: SeedReport) -> None:
    """Write a failing seed down, unless it is there."""
    if report.seed not in recorded(path):
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{report.seed}  # {', '.join(report.caught_by)}: {report.headline}\n")


def recorded(path: Path) -> list[int]:
    """The seeds that are written down, in that order."""
    if not path.exists():
        return []
    lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [int(line) for line in lines if line]


def summary(tally: Tally) -> dict[str, Any]:
    """A run in figures.  ``package``: which files were run."""
    return {"package": str(Path(meshq.__file__).parent), **figures(tally)}


def figures(tally: Tally) -> dict[str, Any]:
    """A run in figures that mean the same on every machine."""
    return {
        "seeds": tally.seeds,
        "failed": [
            {"seed": report.seed, "caught_by": list(report.caught_by), "what": report.headline}
            for report in tally.failed
        ],
        "simulated_s": round(tally.simulated_s),
        "confirmed_sends": tally.confirmed,
        "faults": tally.faults,
        "cpu_s": round(tally.cpu_s, 1),
        "counters": dict(sorted(tally.counters.items())),
    }


if __name__ == "__main__":
    sys.exit(main())
