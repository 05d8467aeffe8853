"""Every store that a test used is accounted for, byte by byte, when the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.kit import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """A store on a simulated disk; afterwards a check finds nothing that nobody wrote."""
    store = Store()
    yield store
    if not store.damaged and store.disk.files():
        store.disk.watch = None
        store.disk.faults.clear()
        report = store.report()
        assert report.clean, report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much the exhaustive proofs tried."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "proof":
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {value}")
