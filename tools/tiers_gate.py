"""Whether the short tier is short: ``python tools/tiers_gate.py RESULTS.xml`` reads what ``pytest --junitxml`` wrote.

A test over half a second of processor time belongs to a longer tier (CONTRIBUTING.md).  A run of all the tests measures
coverage, too, and the tests disturb each other: what took longer there is run once more, alone, before the gate judges.
It names every test that took more even so, and fails for twice as much.  On a slow machine, which a small reckoning
tells, all times may be longer in proportion.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as tree
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT_S = 0.5
ALLOWANCE = 2.0
#: The processor seconds of the reckoning on a machine of two cores with nothing else to do, as measured: the median.
RECKONING_S = 0.125


def slowness() -> float:
    """How many times slower this machine is than the one that ``RECKONING_S`` was measured on; at least 1."""
    took = []
    for _ in range(5):
        began = time.process_time()
        sums, total = {}, 0
        for number in range(1_000_000):
            sums[number & 1023] = total
            total += number
        took.append(time.process_time() - began)
    return max(1.0, sorted(took)[2] / RECKONING_S)


def long_tests(report: Path) -> list[tuple[float, str]]:
    """The tests over half a second and their processor seconds, the longest first."""
    found = []
    for case in tree.parse(report).iter("testcase"):
        for one in case.iter("property"):
            if one.get("name") == "processor_s" and float(one.get("value", 0)) > SHORT_S:
                found.append((float(one.get("value", 0)), f"{case.get('file')}::{case.get('name')}"))
    return sorted(found, reverse=True)


def alone(names: list[str], results: Path) -> list[tuple[float, str]]:
    """The tests among these that are too long also in one process that measures nothing else."""
    # Tests that a library makes are in no file of the project, and have no name by which pytest finds them.
    known = [name for name in names if (ROOT / name.partition("::")[0]).is_file() and not name.startswith("..")]
    if not known:
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--junitxml={results}", *known]
    # It is a run of its own, and what is temporary lies beside its results.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MESHQ_"))}
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env={**env, "TMPDIR": str(results.parent)})
    return long_tests(results)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    found = long_tests(parser.parse_args().results)
    print(f"{len(found)} tests of the short tier took more than {SHORT_S} processor seconds among the others")
    slower = slowness()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = alone([name for _, name in found], Path(folder) / "alone.xml")
    # The machine may have become slower, or faster, meanwhile.
    slower = max(slower, slowness())
    found = [(seconds, name) for seconds, name in found if seconds > SHORT_S * slower]
    print(
        f"{len(found)} of them took more than {SHORT_S} processor seconds alone, on a machine {slower:.1f} times slower"
    )
    for seconds, name in found:
        print(f"  {seconds:.2f} s {name}")
    return 1 if found and found[0][0] > SHORT_S * ALLOWANCE * slower else 0


if __name__ == "__main__":
    sys.exit(main())
