"""Where the files of results are, and the facts that each result records about its run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import Any, Final

#: In the root of the project.
RESULTS: Final = "docs/results"
PACKAGES: Final = ("meshq", "trio", "attrs", "msgpack", "cryptography")


def commit() -> str:
    """The commit that is run; ``+``: tracked files differ from it.  Empty outside a checkout."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "qa"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed else "")


def about_here() -> dict[str, Any]:
    """Return the facts of a run: commit, date, cores and versions."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "versions": versions,
    }
