"""``python -m benchmarks``: run the rows of docs/performance.md and say which targets are met."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence

import attrs

from benchmarks import activemq, against, report, results
from benchmarks.processes import BenchmarkError
from benchmarks.row import Row
from benchmarks.rows import SYSTEMS, chosen
from benchmarks.runner import measure, measure_undisturbed

SECONDS = 2.0
QUICK_SECONDS = 0.2
#: A backlog that fits into a quick run.
QUICK_BACKLOG = 20_000
QUICK_TRIALS = 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("--rows", help="rows to run, for example P1,P3 or P6-single (all)")
    made.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s, which to run")
    made.add_argument("--seconds", type=float, default=SECONDS, help="about how long a run lasts (%(default)s)")
    made.add_argument("--messages", type=int, help="messages of each run, instead of --seconds")
    made.add_argument(
        "--pairs", type=int, help=f"times that the systems run in turn (1, with --against {against.PAIRS_MIN})"
    )
    made.add_argument(
        "--against", metavar="COMMIT", help="run meshq of this checkout and of that commit in turn, and nothing else"
    )
    made.add_argument("--quick", action="store_true", help="very short runs: they show that it works, no figures")
    made.add_argument(
        "--disturbed", action="store_true", help="keep runs in which others used the machine; the figures say how much"
    )
    made.add_argument("--result", metavar="NAME", help="add the runs to docs/results/NAME.json")
    made.add_argument("--replace", action="store_true", help="begin that file anew")
    made.add_argument("--docs", action="store_true", help="only make docs/performance.md from docs/results")
    made.add_argument("--check-docs", action="store_true", help="only say whether that page is up to date")
    return made


def systems_here(names: str) -> list[str]:
    """The systems asked for that can run here; a missing anchor is said, not fatal."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in SYSTEMS:
            raise ValueError(f"no system {name!r}: there are {', '.join(SYSTEMS)}")
    if "redis" in wanted and (shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None):
        print("no Redis: it needs redis-server on the path and the extra 'bench'", file=sys.stderr)
        wanted.remove("redis")
    return wanted


def run_row(row: Row, systems: Sequence[str], options: argparse.Namespace) -> tuple[results.Runs, int]:
    """The row's systems in turn, as many times as asked for; a run that fails is said and counted."""
    runs: results.Runs = []
    failed = 0
    pairs = options.pairs or 1
    for pair in range(pairs):
        run: dict[str, dict[str, float]] = {}
        for system in systems:
            if system not in row.workloads:
                continue
            workload = row.workload(system, options.seconds, options.messages)
            try:
                run[system] = (measure if options.quick or options.disturbed else measure_undisturbed)(system, workload)
            except BenchmarkError as error:
                failed += 1
                print(f"{row.key} {system}: {error}", file=sys.stderr)
                continue
            shown = ", ".join(
                f"{line.metric} {report.figure(run[system][line.metric], line.unit)}" for line in row.lines
            )
            print(f"{row.key} {system} {pair + 1}/{pairs}: {shown}", file=sys.stderr, flush=True)
        if run:
            runs.append(run)
    return runs, failed


def run_rows(options: argparse.Namespace, command: str) -> int:
    """Run, print the table, and keep the figures if a name was given."""
    if options.quick:
        options.seconds = QUICK_SECONDS
    systems = systems_here(options.systems)
    name = options.result
    result = results.opened(name, replace=options.replace) if name else results.empty("this run")
    result["commands"].append(command)
    failures = 0
    for row in chosen(options.rows):
        if row.activemq and not activemq.is_here():
            why = "it needs Debian's package activemq in /usr/share, and java on the path"
            print(f"{row.key}: no ActiveMQ: {why}", file=sys.stderr)
            continue
        runs, failed = run_row(shortened(row) if options.quick else row, systems, options)
        failures += failed
        if runs:
            results.add(result, row, runs)
        if name and runs:
            results.save(result)
    print(report.text_table(list(report.lines(result))))
    print(report.yardstick(result))
    if result["machine"]["file_system"] == "tmpfs":
        print("the temporary directory is a tmpfs: syncs cost nothing there, set TMPDIR to a real disk")
    return 1 if failures else 0


def run_against(options: argparse.Namespace, command: str) -> int:
    """Run the product of this checkout and that of another commit in turn, and keep the figures unless it is quick."""
    if options.systems != ",".join(SYSTEMS):
        raise ValueError(f"--systems {options.systems}: --against runs meshq only, of two commits")
    pairs = against.PAIRS_MIN if options.pairs is None else options.pairs
    if options.quick:
        options.seconds, pairs = QUICK_SECONDS, options.pairs or 1
    elif pairs < against.PAIRS_MIN:
        raise ValueError(f"--pairs {pairs}: --against takes at least {against.PAIRS_MIN}, or --quick")
    failures = 0
    with against.checked_out(options.against) as (commit, product):
        name = options.result or against.NAME
        result = against.empty(commit) if options.quick else against.opened(commit, name, replace=options.replace)
        result["commands"].append(command)
        for row in chosen(options.rows):
            row = shortened(row) if options.quick else row
            workload = row.workload("ours", options.seconds, options.messages)
            runs, failed = against.run_pairs(
                row, workload, product, pairs, measure if options.quick else measure_undisturbed
            )
            failures += failed
            if runs:
                against.add(result, row, runs)
            if runs and not options.quick:
                results.save(result)
    print(report.text_table(list(report.compared_lines(result)), report.COMPARED))
    return 1 if failures else 0


def shortened(row: Row) -> Row:
    """What waits for its own sake waits less."""
    short = {
        system: attrs.evolve(
            workload,
            count=min(workload.count, QUICK_BACKLOG),
            seconds=min(workload.seconds, QUICK_SECONDS),
            trials=min(workload.trials, QUICK_TRIALS),
        )
        for system, workload in row.workloads.items()
    }
    return attrs.evolve(row, workloads=short)


def make_page(*, check: bool) -> int:
    """Write the page of figures, or say that it is stale."""
    old = report.PAGE.read_text()
    new = report.page(old, report.recorded())
    if check and new != old:
        print(f"{report.PAGE.name} is stale: run python -m benchmarks --docs", file=sys.stderr)
        return 1
    if new != old:
        report.PAGE.write_text(new)
    return 0


def ended(number: int, frame: object) -> None:
    """SIGTERM unwinds as Ctrl-C does, so that processes and directories go."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if everything ran, 1 if a run failed, 2 for a wrong command line."""
    options = parser().parse_args(arguments)
    if options.docs or options.check_docs:
        return make_page(check=options.check_docs)
    signal.signal(signal.SIGTERM, ended)
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if options.quick and options.result:
            raise ValueError("--quick shows that everything works: its figures are not worth a --result")
        run = run_rows if options.against is None else run_against
        return run(options, shlex.join(["python", "-m", "benchmarks", *given]))
    except (ValueError, results.ResultError) as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
