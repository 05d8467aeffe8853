"""Seeds of the simulated pair, always the same: one node serves at a time, nothing is lost, and nothing comes twice."""

from __future__ import annotations

import pytest

from qa.ha.scenario import DURATION_S, FAULTS, SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 24
MET = (*(f"seen.{sight}" for sight in SIGHTS), *(f"fault.{kind}" for kind in FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_one_node_of_a_pair_serves_at_a_time_and_keeps_what_was_confirmed() -> None:
    reports = reports_that_meet("ha", MET, seeds=SEEDS, most=3 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
