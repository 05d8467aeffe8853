"""Seeds of a pair that asks a quorum, always the same: one node serves at a time, and with all that was confirmed."""

from __future__ import annotations

import pytest

from qa.ha.provided import DURATION_S, PROVIDED_FAULTS, PROVIDED_SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 12
MET = (*(f"seen.{sight}" for sight in PROVIDED_SIGHTS), *(f"fault.{kind}" for kind in PROVIDED_FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_a_pair_that_asks_a_quorum_keeps_what_was_confirmed_whatever_is_cut_and_in_whatever_order_it_starts() -> None:
    reports = reports_that_meet("provided", MET, seeds=SEEDS, most=5 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
