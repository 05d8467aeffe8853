"""Measures branch coverage of wire, store and the queue machine in the same run as the tests: ``-p tests.covered``.

Importing and collecting is measured, then only the tests of wire and store and some of the broker's, which is what the
gate counts: a branch that is taken by chance in a simulation is not tested.  All others run at full speed, and so do
those that are marked ``exhaustive``: they try thousands of states or frames, and measuring takes three times as long as
trying.
``MESHQ_COVERAGE`` says where the data goes; ``tools/coverage_gate.py`` reads it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

TESTS = Path(__file__).parent
#: Those of the broker that test the queue machine and what the broker alone writes and reads; the others take no branch
#: that these don't take.
OF_THE_BROKER = (
    "auto_delete",
    "costly_notifications",
    "costly_runs",
    "explained_among_nodes",
    "filter_work",
    "filters_of_a_session",
    "groups",
    "histories_of_peers",
    "kept_for_network",
    "last_value",
    "overwriting",
    "queue_machine",
    "record_prefix",
    "sender_branches",
    "topology_feed",
    "two_phase_held",
)
COUNTED = (TESTS / "wire", TESTS / "store", *(TESTS / f"broker/test_{name}.py" for name in OF_THE_BROKER))
SOURCES = ["meshq.wire", "meshq.store", "meshq.broker.queue._queue_machine"]


class Covered:
    """Runs coverage from now until everything is imported, and while a test that counts runs."""

    def __init__(self, folder: str) -> None:
        self._coverage = coverage.Coverage(
            data_file=str(Path(folder) / "coverage"), data_suffix=True, branch=True, source_pkgs=SOURCES
        )
        # A process that only hands out tests, or runs none that count, measures nothing, and need not say so.
        self._coverage.set_option(
            "run:disable_warnings", ["no-data-collected", "module-not-imported", "module-not-measured"]
        )
        self._coverage.start()

    def pytest_collection_finish(self) -> None:
        """Everything is imported."""
        self._coverage.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Set-up and tear-down count too."""
        counts = any(item.path.is_relative_to(place) for place in COUNTED)
        if not counts or item.get_closest_marker("exhaustive") is not None:
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    def pytest_sessionfinish(self) -> None:
        """Write what was measured; the gate puts the processes together."""
        self._coverage.stop()
        self._coverage.save()


# Begun here and not in a hook: the first conftest files are imported before any hook runs.
COVERED = Covered(os.environ["MESHQ_COVERAGE"]) if "MESHQ_COVERAGE" in os.environ else None


def pytest_configure(config: pytest.Config) -> None:
    """Measure in whichever process runs tests."""
    if COVERED is not None:
        config.pluginmanager.register(COVERED, "covered")
