"""Seeds of a simulated network of brokers, always the same: nothing is lost, and nothing runs in a circle."""

from __future__ import annotations

import pytest

from qa.network.scenario import DURATION_S
from qa.network.shape import KILLS, KINDS, NETWORK_SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 30
MET = (*(f"seen.{sight}" for sight in NETWORK_SIGHTS), *(f"fault.{kind}" for kind in (*KINDS, *KILLS)))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_message_comes_where_it_is_wanted() -> None:
    reports = reports_that_meet("network", MET, seeds=SEEDS, most=4 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
