"""Seeds of the simulation with a partner, always the same: the broker takes turns, the partner lags and fails."""

from __future__ import annotations

import pytest

from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 8
MET = (
    "fault.partner_fails",
    "fault.partner_lags",
    "fault.step_back",
    "node.kill",
    "node.power_off",
    "seen.partner_was_behind",
    "seen.waiting",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_with_a_partner_that_lags_and_fails() -> None:
    reports = reports_that_meet("replicated", MET, seeds=SEEDS, most=12 * SEEDS)
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
