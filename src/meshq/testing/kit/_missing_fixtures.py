"""The fixtures for trio without pytest-trio: each of them fails with the command that installs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from meshq.testing.plugin import INSTALL


def _missing(name: str) -> Callable[[], NoReturn]:
    @pytest.fixture(name=name)
    def missing() -> NoReturn:
        pytest.fail(f"{name} needs pytest-trio, which is not installed or not loaded: {INSTALL}", pytrace=False)

    return missing


meshq_broker = _missing("meshq_broker")
meshq_client = _missing("meshq_client")
meshq_clock = _missing("meshq_clock")
meshq_cluster = _missing("meshq_cluster")
meshq_journal = _missing("meshq_journal")
meshq_network = _missing("meshq_network")
