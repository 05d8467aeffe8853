"""Seeds of a simulated client that sends to three brokers, always the same: what it is told is so."""

from __future__ import annotations

import pytest

from qa.fanout.scenario import DURATION_S, FANOUT_SIGHTS, KINDS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 600
SEEDS = 10
MET = (*(f"seen.{sight}" for sight in FANOUT_SIGHTS), *(f"fault.{kind}" for kind in KINDS))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_broker_has_what_the_sender_was_told() -> None:
    reports = reports_that_meet("fanout", MET, seeds=SEEDS, most=3 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
