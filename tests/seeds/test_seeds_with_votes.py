"""Seeds of a pair about which others vote, always the same: nothing confirmed is lost, whatever is cut."""

from __future__ import annotations

import pytest

from qa.ha.voted import DURATION_S, VOTED_FAULTS, VOTED_SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 2
MET = (*(f"seen.{sight}" for sight in VOTED_SIGHTS), *(f"fault.{kind}" for kind in VOTED_FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_a_pair_with_voters_keeps_what_was_confirmed_whatever_is_cut_and_in_whatever_order_it_starts() -> None:
    reports = reports_that_meet("voted", MET, seeds=SEEDS, most=48)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
