"""Run the plugin's own tests on the oldest and the newest pytest: ``python tools/run_on_pytests.py --result pytests``.

The oldest versions are those that the extra ``testing`` of ``pyproject.toml`` allows, the newest what pip finds today.
Both get an environment of their own, which is removed afterwards unless ``--environments`` names a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as tree
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qa.results import ResultFile, ResultFormat, about_here, add_result_option  # noqa: E402

FORMAT: Final = ResultFormat("pytests")
ENDS: Final = ("oldest", "newest")
TESTS: Final = ("tests/testing/kit", "tests/testing/scenario/test_simulated.py")
#: Seconds for the tests of one environment.
LIMIT_S: Final = 1_800


def wanted(end: str, extra: list[str]) -> list[str]:
    """The requirements of an extra at one end of what it allows.

    Raises: ValueError: a requirement is not ``name>=version``.
    """
    found = []
    for requirement in extra:
        name, least, version = requirement.partition(">=")
        if not least or not re.fullmatch(r"[\d.]+", version):
            raise ValueError(f"{requirement!r} is not name>=version")
        found.append(f"{name}=={version}" if end == "oldest" else requirement)
    return found


def environment(folder: Path, end: str) -> Path:
    """The Python of an environment with these versions, made if it is not there."""
    where = folder / end
    python = where / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", where], check=True)
        extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["testing"]
        # Other plugins of pytest go with its version.
        free = ("pytest", *(requirement.partition(">=")[0] for requirement in extra))
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(line for line in lines if not line.startswith(free)) + "\n")
        install = [python, "-m", "pip", "install", "-q", "-c", constraints]
        subprocess.run([*install, f"{ROOT}[test,testing]", *wanted(end, extra)], check=True)
    return python


def versions(python: Path) -> dict[str, str]:
    """The versions that are installed there."""
    names = ["pytest", "pytest-trio", "pytest-asyncio", "trustme", "trio"]
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    found: dict[str, str] = json.loads(subprocess.check_output([python, "-c", code, *names], text=True))
    return found


def tested(python: Path, folder: Path, tests: list[str]) -> dict[str, Any]:
    """Run the tests; their counts, those that failed, and why some were left out."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-n0", "-m", "short or slow", *tests, f"--junitxml={report}"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False, timeout=LIMIT_S)
    cases = list(tree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skips = [str(skip.get("message")) for case in cases if (skip := case.find("skipped")) is not None]
    return {
        "passed": len(cases) - len(bad) - len(skips),
        "failed": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
        "skipped": dict(Counter(skips)),
    }


def main() -> int:
    """Test both ends; 0 if no test has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--environments", metavar="DIR", help="keep the environments here, and use those that are there"
    )
    parser.add_argument("--tests", action="append", help=f"files of tests ({', '.join(TESTS)})")
    add_result_option(parser, FORMAT, "write", ROOT)
    given = parser.parse_args()
    tests = given.tests or list(TESTS)
    ends: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.environments or temporary).resolve()
        folder.mkdir(exist_ok=True)
        for end in ENDS:
            python = environment(folder, end)
            ends[end] = {"versions": versions(python), **tested(python, Path(temporary), tests)}
            print(end, json.dumps(ends[end], indent=1), flush=True)
    file: ResultFile | None = given.result
    if file is not None:
        command = " ".join(["python tools/run_on_pytests.py", "--result", file.name])
        file.write({"command": command, **about_here(), "tests": tests, "ends": ends})
    return 1 if any(end["failed"] or not end["passed"] for end in ends.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
