"""Fuzz a format that comes from outside, or replay its corpus.

Inputs are drawn from those that are known, changed, and kept where they reach a branch that no other one has reached.
An input after which anything but a typed error comes out is written down, and ends the run.  ``--replay`` plays the
corpus, or files, without atheris.  ``--write`` keeps the inputs that reach all that was reached, as
``tests/data/fuzz/TARGET``; the tests replay them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from qa.arguments import COUNT, NATURAL, existing_file
from qa.fuzz import corpus
from qa.fuzz.target import Target
from qa.fuzz.targets import TARGETS
from qa.results import ResultFile, ResultFormat, about_here, add_result_option

FORMAT: Final = ResultFormat("fuzz", parts="targets", parts_type=dict, part_fields={"executions": int, "commit": str})
#: One input may take so long, and all of them so much memory.
INPUT_S_MAX: Final = 5
MEMORY_MIB_MAX: Final = 1_024
MISSING: Final = "fuzzing needs the package atheris: pip install 'meshq[fuzz]'; --replay does without"


def replay(target: Target, files: Iterable[Path]) -> None:
    """Play inputs.  An error that is not typed is raised."""
    accepted = [target.accepts(file.read_bytes()) for file in files]
    sys.stdout.write(f"{target.name}: {len(accepted)} inputs, {sum(accepted)} of them read, the others refused\n")


def fuzz(target: Target, seconds: int, seed: int, work: Path) -> tuple[int, dict[str, Any]]:
    """Play new inputs of a target for a while; returns the exit status of the engine, and its figures."""
    for number, data in enumerate([*target.seeds(), *corpus.inputs_of(target)]):
        (work / f"known-{number}").write_bytes(data)
    options = {
        "max_total_time": seconds,
        "max_len": target.bytes_max,
        "timeout": INPUT_S_MAX,
        "rss_limit_mb": MEMORY_MIB_MAX,
        "seed": seed,
        "artifact_prefix": f"{tempfile.gettempdir()}/fuzz-{target.name}-",
        "print_final_stats": 1,
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "qa.fuzz.engine", target.name, *arguments, str(work)]
    paths = [str(corpus.ROOT / "src"), str(corpus.ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    output = done.stdout + done.stderr
    if done.returncode:
        # What it says before is which files are instrumented.
        sys.stdout.write(output[max(output.find("Uncaught Python exception"), len(output) - 6_000) :])
    executions = re.findall(r"stat::number_of_executed_units:\s+(\d+)", output) or re.findall(r"#(\d+)\t", output)
    branches = re.findall(r" cov: (\d+) ", output)
    return done.returncode, {
        "executions": int(executions[-1]) if executions else 0,
        "branches": int(branches[-1]) if branches else 0,
        "seconds": round(time.monotonic() - began),
    }


def add(file: ResultFile, target: Target, figures: dict[str, Any]) -> None:
    """Add the figures of a run to the file of results, in place of the figures of an earlier run of the target."""
    whole = file.read()
    whole["targets"][target.name] = {**figures, **about_here()}
    file.write(whole)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz", description=__doc__)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--seconds", type=COUNT, default=60, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--seed", type=NATURAL, default=1, metavar="N", help="of the engine (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the corpus")
    add_result_option(parser, FORMAT, "add the figures to")
    parser.add_argument("--replay", nargs="*", type=existing_file, metavar="FILE", help="play files, or the corpus")
    options = parser.parse_args(arguments)
    target = TARGETS[options.target]
    if options.replay is not None:
        replay(target, options.replay or sorted(corpus.folder_of(target).glob("*")))
        return 0
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write(f"{MISSING}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        work = Path(directory)
        status, figures = fuzz(target, options.seconds, options.seed, work)
        inputs, steps = corpus.minimized(target, [path.read_bytes() for path in sorted(work.iterdir())])
    figures |= {"inputs": len(inputs), "steps": steps}
    sys.stdout.write(f"{target.name}: {json.dumps(figures)}\n")
    if options.write and status == 0:
        corpus.write(target, inputs)
    if options.result and status == 0:
        add(options.result, target, figures)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
