"""Branch coverage of the parts that must not surprise: ``python tools/coverage_gate.py``.

Runs the tests of wire, store and broker (``tests/covered.py`` measures them) and fails if less than 95 % of the
branches, or of the lines, of ``wire``, ``store`` or the queue machine were taken.
``--data FOLDER`` judges what a run of all the tests has left there.  Other arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).parents[1]
PERCENT_MIN = 95.0
PARTS = {
    "wire": "src/meshq/wire/*",
    "store": "src/meshq/store/*",
    "queue machine": "src/meshq/broker/queue/_queue_machine.py",
}
TESTS = ("tests/wire", "tests/store", "tests/broker")


def percent(covered: int, of: int) -> float:
    """A share of nothing is whole."""
    return 100.0 * covered / of if of else 100.0


def measure(folder: str, arguments: list[str]) -> int:
    """Run the tests that count; the exit status of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "tests.covered", *TESTS, *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "MESHQ_COVERAGE": folder}).returncode


def numbers(lines: list[int]) -> str:
    """Line numbers for reading."""
    return ", ".join(map(str, lines)) or "none"


def judge(measured: coverage.Coverage, part: str, pattern: str) -> bool:
    """Print one part's figures and what is missing; whether they suffice."""
    files = sorted(name for name in measured.get_data().measured_files() if Path(name).match(pattern))
    lines_of = lines = branches_of = branches = 0
    gaps = []
    for name in files:
        _, statements, _, missing, _ = measured.analysis2(name)
        stats = measured.branch_stats(name)
        lines_of, lines = lines_of + len(statements), lines + len(statements) - len(missing)
        branches_of += sum(total for total, _ in stats.values())
        branches += sum(taken for _, taken in stats.values())
        partial = [line for line, (total, taken) in stats.items() if taken < total]
        if missing or partial:
            gaps.append(f"  {Path(name).name}: lines {numbers(missing)}; branches from {numbers(partial)}")
    shares = percent(branches, branches_of), percent(lines, lines_of)
    print(f"{part}: {shares[0]:.1f} % of {branches_of} branches, {shares[1]:.1f} % of {lines_of} lines")
    good = bool(files) and min(shares) >= PERCENT_MIN
    if not good:
        print("\n".join(gaps))
    return good


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder that a run with MESHQ_COVERAGE has filled")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.data or name
        if not options.data and (status := measure(folder, arguments)):
            return status
        measured = coverage.Coverage(data_file=str(Path(folder) / "coverage"), branch=True, config_file=True)
        measured.combine([folder], keep=True)
        good = [judge(measured, part, pattern) for part, pattern in PARTS.items()]
    if not all(good):
        print(f"under {PERCENT_MIN} %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
