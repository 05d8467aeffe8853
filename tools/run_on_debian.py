"""Run the tests on the Python of other Debian releases: ``python tools/run_on_debian.py [-- PYTEST ARGUMENTS]``.

Each release is unpacked into a temporary folder (debootstrap), gets the last commit and a virtual environment with
the tested versions, and runs the tests there, in a mount namespace of its own that vanishes with it.
Needs root, a network, and about 1 GiB.  The result goes to ``docs/results/platforms.json``, and the table on the page
beside it is drawn from that; ``--docs`` only draws it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as tree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "docs" / "results" / "platforms.json"
PAGE = ROOT / "docs" / "results" / "index.md"
#: The table stands below this line, to the end of the page.
HEADING = "| Python | Debian | arguments | passed | failed | skipped | commit |"
#: trixie has Python 3.13, sid 3.14.
RELEASES = ("trixie", "sid")
PACKAGES = ("python3", "python3-venv", "ca-certificates", "redis-server", "strace")
#: Of the machine's own files, what the network there can't do without.
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
VERSIONS = ("attrs", "cryptography", "hypothesis", "msgpack", "pytest", "trio")

INSIDE = """
set -eu
cd /src
python3 -m venv /venv
/venv/bin/pip install -c constraints.txt -e '.[test-all]'
/venv/bin/python -m pytest -q --no-header --junitxml=/tests.xml tests "$@"
"""
DESCRIBE = """
import importlib.metadata, json, platform, sys
print(json.dumps({"python": platform.python_version(), **{n: importlib.metadata.version(n) for n in sys.argv[1:]}}))
"""


def environment(folder: Path) -> dict[str, str]:
    """What is passed on: pip's settings, without paths that don't exist in there."""
    inside = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PIP_QUIET": "2"}
    for name, value in os.environ.items():
        missing = value.startswith("/") and not (folder / value.lstrip("/")).exists()
        if name.startswith("PIP_") and not missing:
            inside[name] = value
    return inside


def unpack(release: str, folder: Path) -> None:
    """The release itself, how it reaches the network, and the last commit in ``/src``."""
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"debootstrap of {release} failed:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    for name in filter(os.path.exists, [*NETWORK_FILES, os.environ.get("PIP_CERT", "")]):
        target = folder / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, target)
    (folder / "src").mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder / "src")], input=archive, check=True)


def inside(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder as if it were the machine; mounts end with it, as do its processes."""
    mounts = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    whole = [*namespace, "sh", "-c", mounts, str(folder), *command]
    return subprocess.run(whole, env=environment(folder), text=True, **options)


def counts(report: Path) -> dict[str, int]:
    """Passed, failed and skipped tests of a run."""
    suites = list(tree.parse(report).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


def run_on(release: str, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """One release: its entry in the result."""
    began = time.monotonic()
    unpack(release, folder)
    unpacked = time.monotonic()
    inside(folder, "bash", "-c", INSIDE, "tests", *arguments)
    report = folder / "tests.xml"
    if not report.exists():
        raise SystemExit(f"{release}: the tests did not run")
    versions = inside(folder, "/venv/bin/python", "-c", DESCRIBE, *VERSIONS, stdout=subprocess.PIPE, check=True).stdout
    return {
        "debian": release,
        **counts(report),
        "seconds": round(time.monotonic() - unpacked),
        "seconds_to_unpack": round(unpacked - began),
        "versions": json.loads(versions),
    }


def page(before: str, platforms: list[dict[str, Any]]) -> str:
    """The page of results with the table of these runs."""
    head, _, _ = before.partition(HEADING)
    rows = [HEADING, "|" + " --- |" * HEADING.count(" | ") + " --- |"]
    for one in sorted(platforms, key=lambda one: one["versions"]["python"]):
        cells = [one["versions"]["python"], one["debian"], f"`{arguments_of(one)}`" if arguments_of(one) else "none"]
        cells += [f"{one[name]:,}" for name in ("passed", "failed", "skipped")]
        rows.append("| " + " | ".join([*cells, f"`{one['commit'][:12]}`"]) + " |")
    return head + "\n".join(rows) + "\n"


def arguments_of(platform: dict[str, Any]) -> str:
    """What pytest was given beside the options of all runs."""
    return str(platform["command"]).partition(" -- ")[2]


def draw() -> None:
    """Draw the table from the file of results."""
    platforms = json.loads(RESULT.read_text(encoding="utf-8"))["platforms"]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), platforms), encoding="utf-8")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="append", help=f"one of Debian's; without it {' and '.join(RELEASES)}")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the result goes")
    parser.add_argument("--docs", action="store_true", help="only draw the table from the result")
    parser.add_argument("arguments", nargs="*", help="given to pytest")
    options = parser.parse_args()
    if options.docs:
        draw()
        return 0
    if os.geteuid() or not shutil.which("debootstrap"):
        raise SystemExit("needs root, and Debian's debootstrap")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    platforms = []
    for release in options.release or RELEASES:
        with tempfile.TemporaryDirectory(prefix=f"{release}-") as name:
            platforms.append(run_on(release, Path(name), options.arguments))
        print(json.dumps(platforms[-1]), flush=True)
    given = ["--", *options.arguments] if options.arguments else []
    for platform in platforms:
        command = ["python tools/run_on_debian.py --release", platform["debian"], *given]
        platform |= {"command": " ".join(command), "commit": commit.strip()}
    if options.release and options.output.exists():
        # What was run of the other releases stays beside it.
        before = json.loads(options.output.read_text(encoding="utf-8"))["platforms"]
        names = [platform["debian"] for platform in platforms]
        platforms = [one for one in before if one["debian"] not in names] + platforms
    result = {"platforms": platforms}
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.output == RESULT:
        draw()
    return 1 if any(platform["failed"] or not platform["passed"] for platform in platforms) else 0


if __name__ == "__main__":
    sys.exit(main())
