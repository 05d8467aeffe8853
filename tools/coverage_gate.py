"""Branch coverage of the parts that must not surprise: ``python tools/coverage_gate.py``.

Runs the tests of wire, store and broker under coverage and fails if less than 95 % of the branches, or of the lines,
of ``wire``, ``store`` or the queue machine were taken.  Arguments go to pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PERCENT_MIN = 95.0
PARTS = {
    "wire": "src/meshq/wire/*",
    "store": "src/meshq/store/*",
    "queue machine": "src/meshq/broker/_queue_machine.py",
}
TESTS = ("tests/wire", "tests/store", "tests/broker")


def percent(covered: int, of: int) -> float:
    """A share of nothing is whole."""
    return 100.0 * covered / of if of else 100.0


def measure(folder: Path, arguments: list[str]) -> int:
    """Run the tests under coverage, their processes included; the exit status of pytest."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
    command = ["coverage", "run", "--parallel-mode", "-m", "pytest", "-q", "--no-header", *TESTS, *arguments]
    status = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode
    if status == 0:
        subprocess.run([sys.executable, "-m", "coverage", "combine", "-q"], cwd=ROOT, env=environment, check=True)
    return status


def judge(folder: Path, part: str, pattern: str) -> bool:
    """Print one part's figures and what is missing; whether they suffice."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
    target = folder / "report.json"
    command = [sys.executable, "-m", "coverage", "json", "-q", f"--include={pattern}", "-o", str(target)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    report = json.loads(target.read_text(encoding="utf-8"))
    totals = report["totals"]
    branches = percent(totals["covered_branches"], totals["num_branches"])
    lines = percent(totals["covered_lines"], totals["num_statements"])
    good = branches >= PERCENT_MIN and lines >= PERCENT_MIN
    print(f"{part}: {branches:.1f} % of {totals['num_branches']} branches, {lines:.1f} % of the lines")
    if not good:
        for name, file in sorted(report["files"].items()):
            missing = [f"{start}->{end}" for start, end in file["missing_branches"]]
            if missing or file["missing_lines"]:
                print(f"  {name}: lines {file['missing_lines']}, branches {', '.join(missing)}")
    return good


def main() -> int:
    """The command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if status := measure(folder, sys.argv[1:]):
            return status
        good = [judge(folder, part, pattern) for part, pattern in PARTS.items()]
    if not all(good):
        print(f"under {PERCENT_MIN} %")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
