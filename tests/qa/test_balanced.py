"""The simulated balancers: runs of their own, and settings of which a few seeds in a row have all."""

from __future__ import annotations

import pytest

from meshq.testing import SimulationResult
from qa.balanced.device import BOUND_S, Device
from qa.balanced.shape import POLICIES
from qa.seeds import STAGES, one_seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_balancers_keep_every_promise_in_a_run_of_their_own(seed: int) -> None:
    report = one_seed(seed, "balanced")
    assert report.passed, report.line
    assert report.confirmed > 100 and report.faults
    assert report.counters["seen.front"] + report.counters["seen.symmetric"] == 1
    assert report.counters[f"seen.{POLICIES[seed % len(POLICIES)]}"] == 1


@pytest.mark.slow
def test_a_client_without_a_broker_is_noticed_and_only_while_one_that_fits_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qa.balanced.device.BOUND_S", -1.0)
    result: SimulationResult = STAGES["balanced"](1)
    assert "P1" in str(result.failure)
    assert BOUND_S == 30.0 and Device.look is not None
