"""Seeds of the simulated balancers, always the same: no client is without a broker while one that fits is there."""

from __future__ import annotations

import pytest

from qa.balanced.scenario import DURATION_S
from qa.balanced.shape import BALANCED_SIGHTS, KINDS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 100
MET = (*(f"seen.{sight}" for sight in BALANCED_SIGHTS), *(f"fault.{kind}" for kind in dict.fromkeys(KINDS)))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_client_has_its_broker() -> None:
    reports = reports_that_meet("balanced", MET, seeds=SEEDS, most=2 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
