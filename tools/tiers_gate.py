"""Whether the short tier is short: ``python tools/tiers_gate.py RESULTS.xml`` reads what ``pytest --junitxml`` wrote.

A test over half a second of processor time belongs to a longer tier (CONTRIBUTING.md).  The gate names every test that
took more, and fails for twice as much, since coverage may be measured meanwhile and a machine may be slow.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

SHORT_S = 0.5
ALLOWANCE = 2.0


def long_tests(report: Path) -> list[tuple[float, str]]:
    """The tests over half a second and their processor seconds, the longest first."""
    found = []
    for case in tree.parse(report).iter("testcase"):
        for one in case.iter("property"):
            if one.get("name") == "processor_s" and float(one.get("value", 0)) > SHORT_S:
                found.append((float(one.get("value", 0)), f"{case.get('file')}::{case.get('name')}"))
    return sorted(found, reverse=True)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    found = long_tests(parser.parse_args().results)
    print(f"{len(found)} tests of the short tier took more than {SHORT_S} processor seconds")
    for seconds, name in found:
        print(f"  {seconds:.2f} s {name}")
    return 1 if found and found[0][0] > SHORT_S * ALLOWANCE else 0


if __name__ == "__main__":
    sys.exit(main())
