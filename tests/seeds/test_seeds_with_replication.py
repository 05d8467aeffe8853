"""Seeds of a pair by replication, always the same: what was confirmed is on both disks, and one node serves."""

from __future__ import annotations

import pytest

from qa.ha.replicated import DURATION_S, FAULTS, SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 24
MET = (*(f"seen.{sight}" for sight in SIGHTS), *(f"fault.{kind}" for kind in FAULTS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_a_pair_by_replication_keeps_what_was_confirmed_when_one_of_its_nodes_is_lost() -> None:
    reports = reports_that_meet("pair", MET, seeds=SEEDS, most=3 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
