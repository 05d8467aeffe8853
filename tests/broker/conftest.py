"""What tests of costly filters have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.costly import Steps, counting_steps


@pytest.fixture(name="steps")
def _steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    yield from counting_steps(monkeypatch)
