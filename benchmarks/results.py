"""Result files: every run of every row, with what it ran on; the medians are computed from them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT
from benchmarks.row import Row, Target

KIND = "benchmark"
FORMAT = 1
DIRECTORY = ROOT / "docs" / "results"
PACKAGES = ("trio", "attrs", "msgpack", "cryptography", "redis", "hiredis")
#: What a result file must have to be read again.
FIELDS = ("kind", "format", "name", "commands", "commit", "date", "machine", "versions", "rows")

Runs = list[dict[str, dict[str, float]]]


class ResultError(Exception):
    """A result file that can't be read, or that belongs to something else."""


def _output(*command: str) -> str:
    """What a command prints, or nothing if it isn't there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit that is measured; a ``+`` says that tracked files differ from it."""
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
    return _output("git", "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    server = _output("redis-server", "--version").partition("v=")[2].partition(" ")[0]
    return found | ({"redis-server": server} if server else {})


def machine() -> dict[str, Any]:
    """Of the host: only what bears on the figures."""
    facts: dict[str, Any] = {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}
    memory = Path("/proc/meminfo")
    if memory.exists():
        facts["memory_gib"] = round(int(memory.read_text().split()[1]) / 1024**2)
    return facts | {"file_system": file_system(Path(tempfile.gettempdir()))}


def file_system(path: Path) -> str:
    """The type of the file system that holds ``path``; on ``tmpfs`` a sync costs nothing and measures nothing."""
    mounts = Path("/proc/self/mounts")
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, point, found, *_ = line.split()
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def empty(name: str, kind: str = KIND) -> dict[str, Any]:
    """A result without rows, about here and now."""
    return {
        "kind": kind,
        "format": FORMAT,
        "name": name,
        "commands": [],
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "rows": {},
    }


def is_benchmark(path: Path, kind: str = KIND) -> bool:
    """Whether a JSON file says that it is one of ours, of that kind."""
    found = json.loads(path.read_text())
    return isinstance(found, dict) and found.get("kind") == kind


def load(path: Path) -> dict[str, Any]:
    """A result file, checked."""
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise ResultError(f"{path} is no JSON: {error}") from error
    missing = [field for field in FIELDS if field not in result]
    if missing or result["format"] != FORMAT:
        raise ResultError(f"{path} lacks {', '.join(missing) or f'format {FORMAT}'}")
    return dict(result)


def opened(name: str, *, replace: bool, directory: Path = DIRECTORY) -> dict[str, Any]:
    """The result to add to: a file of that name from the same commit and machine goes on, another is refused."""
    return continued(empty(name), ("commit", "machine", "versions"), replace=replace, directory=directory)


def continued(
    fresh: dict[str, Any], same: Sequence[str], *, replace: bool, directory: Path = DIRECTORY
) -> dict[str, Any]:
    """The result of that name that lies there, or the fresh one; the fields ``same`` must be the same in both.

    Raises:
        ResultError: they aren't.
    """
    path = directory / f"{fresh['name']}.json"
    if replace or not path.exists():
        return fresh
    old = load(path)
    for field in ("kind", *same):
        if old[field] != fresh[field]:
            raise ResultError(
                f"{path} holds figures of {field} {old[field]}, here it is {fresh[field]}: "
                "name another result, or replace this one with --replace"
            )
    return old


def save(result: Mapping[str, Any], directory: Path = DIRECTORY) -> Path:
    """Write a result file; readable in a diff."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result['name']}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=False, ensure_ascii=False) + "\n")
    return path


def add(result: dict[str, Any], row: Row, runs: Runs) -> None:
    """Add runs of a row (one per pair: figures by system) and make its medians again."""
    entry = result["rows"].setdefault(row.key, {"runs": [], "median": {}, "ratio": {}})
    entry["runs"].extend({s: rounded(f) for s, f in run.items()} for run in runs)
    systems = dict.fromkeys(system for run in entry["runs"] for system in run)
    entry["median"] = {system: medians([run[system] for run in entry["runs"] if system in run]) for system in systems}
    if row.floor_to_redis:
        entry["floor_to_redis"] = median_ratio(entry["runs"], "rate", "redis", ours="floor")
    entry["ratio"] = {
        line.metric: {
            other: ratio
            for other in ("floor", "redis")
            if (ratio := median_ratio(entry["runs"], line.metric, other)) is not None
        }
        for line in row.lines
    }


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Four significant digits: these machines don't repeat more."""
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    names = dict.fromkeys(name for run in runs for name in run)
    return rounded({n: statistics.median(run[n] for run in runs if n in run) for n in names})


def median_ratio(runs: Runs, metric: str, other: str, ours: str = "ours") -> float | None:
    """``ours`` over ``other``, run by run, so that what slows the machine slows both."""
    ratios = [
        run[ours][metric] / run[other][metric]
        for run in runs
        if run.get(ours, {}).get(metric) is not None and run.get(other, {}).get(metric)
    ]
    return float(f"{statistics.median(ratios):.3g}") if ratios else None


def verdict(entry: Mapping[str, Any], metric: str, target: Target) -> bool | None:
    """Whether a target is met; None if it was not measured."""
    if target.against:
        value = entry["ratio"].get(metric, {}).get(target.against)
    else:
        value = entry["median"].get("ours", {}).get(metric)
    return None if value is None else target.met(value)
