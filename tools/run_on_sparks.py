"""Run the tests of Spark with other versions of PySpark: ``python tools/run_on_sparks.py --result spark_versions``.

Each version gets an environment of its own, which is removed afterwards unless ``--environments`` names a folder.
What does not fit a version is skipped there, and the reasons are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from qa.results import ResultFile, ResultFormat, about_here, add_result_option  # noqa: E402

FORMAT: Final = ResultFormat(
    "spark_versions", parts="versions_of_spark", parts_type=dict, part_fields={"failed": list, "commit": str}
)
VERSIONS: Final = ("4.1.4", "4.2.1", "4.3.0")
#: Seconds for the tests of one version.
LIMIT_S: Final = 1_800


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this version, made if it is not there."""
    where = folder / version
    python = where / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", where], check=True)
        kept = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("pyspark")]
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(kept) + "\n")
        wanted = [f"{ROOT}[test,spark]", f"pyspark[sql]=={version}"]
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, *wanted], check=True)
    return python


def tested(python: Path, folder: Path, tests: list[str]) -> dict[str, Any]:
    """Run the tests of the tier; their counts, and why some were left out."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    # What PySpark 4.1 collects comes over sockets that it does not close.
    ignored = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
    command = [python, "-m", "pytest", "-q", "-n0", "-m", "spark", *tests, *ignored, f"--junitxml={report}"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, check=False, timeout=LIMIT_S)
    cases = list(tree.parse(report).iter("testcase"))
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("failure") is not None]
    failed += [f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("error") is not None]
    skips = [str(skip.get("message")) for case in cases if (skip := case.find("skipped")) is not None]
    return {
        "passed": len(cases) - len(failed) - len(skips),
        "failed": failed,
        "skipped": dict(Counter(skips)),
    }


def main() -> int:
    """Test all versions; 0 if no test has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), help="of PySpark (%(default)s)")
    parser.add_argument(
        "--environments", metavar="DIR", help="keep the environments here, and use those that are there"
    )
    parser.add_argument("--tests", action="append", help="files of tests (tests/real/spark)")
    add_result_option(parser, FORMAT, "write", ROOT)
    given = parser.parse_args()
    tests = given.tests or ["tests/real/spark"]
    file: ResultFile | None = given.result
    known = file.read()["versions_of_spark"] if file is not None else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.environments or temporary).resolve()
        folder.mkdir(exist_ok=True)
        for version in given.versions:
            found = tested(environment(folder, version), Path(temporary), tests)
            here = about_here()
            known[version] = {**found, "tests": tests, "commit": here["commit"], "date": here["date"]}
            print(version, json.dumps(known[version], indent=1), flush=True)
            if file is not None:
                command = " ".join(["python tools/run_on_sparks.py", "--result", file.name])
                file.write({"command": command, **here, "versions_of_spark": known})
    return 1 if any(known[version]["failed"] for version in given.versions) else 0


if __name__ == "__main__":
    sys.exit(main())
