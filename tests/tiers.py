"""The tiers of the tests: which of them a run has, and in how many processes.

``python -m pytest`` runs the short tier.  A folder, a file or a test that is named on the command line runs whole,
and ``-m`` chooses by itself.  A test of a longer tier has the marker of that tier, and every other test is ``short``.
CONTRIBUTING.md has a table of the tiers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHORT = "short"
#: The longer tiers: what is shown there, and what has no other place.
TIERS = ("rules", "slow", "examples", "matrix", "exhaustive", "seeded_bugs", "seeds", "processes", "spark", "demo")
#: More processes than this would wait for one another, or for the disk.
WORKERS_MAX = 16


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_a_test() -> int:
    """How many processes a test may keep busy: what ``.ci/run`` says, or the cores divided among the workers."""
    if "MESHQ_TEST_CORES" in os.environ:
        return int(os.environ["MESHQ_TEST_CORES"])
    return max(1, cores() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def is_named(config: pytest.Config) -> bool:
    """Whether the command line names folders, files or tests."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def pytest_configure(config: pytest.Config) -> None:
    """Choose the short tier where nothing else was chosen; a worker has what its run has."""
    run = getattr(config, "workerinput", None)
    if run is not None:
        config.option.markexpr = run["markexpr"]
    elif not is_named(config) and not config.option.markexpr:
        config.option.markexpr = SHORT


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker, which reads the command line anew."""
    node.workerinput["markexpr"] = node.config.option.markexpr


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process a core; for files and tests that are named, and where output is shown as it comes, this one alone."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    few = is_named(config) and not any(Path(argument).is_dir() for argument in config.args)
    if few or cores() == 1 or config.option.capture == "no" or config.option.trace:
        return 0
    return min(cores(), WORKERS_MAX)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Write down the processor seconds of each test: other programs of the machine don't count in them."""
    began = _processor_seconds()
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor_s", f"{_processor_seconds() - began:.2f}"))


def pytest_report_header(config: pytest.Config) -> str:
    """Say what runs."""
    return f"tier: {config.option.markexpr or 'all'} (longer tiers: see CONTRIBUTING.md)"


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as short whatever has no other tier."""
    for item in items:
        tiers = [name for name in TIERS if item.get_closest_marker(name) is not None]
        if len(tiers) > 1:
            raise pytest.UsageError(f"{item.nodeid} has several tiers: {', '.join(tiers)}")
        if tiers and f"mark.{tiers[0]}" not in _text(item.path):
            raise pytest.UsageError(f"{item.nodeid} is of the tier {tiers[0]}, and its file does not say so")
        if not tiers:
            item.add_marker(SHORT)
