"""Seeds of the simulated chain, always the same: a message goes as far as it may, once, and each node knows what it can
reach."""

from __future__ import annotations

import pytest

from qa.chain.scenario import DURATION_S
from qa.chain.shape import CHAIN_SIGHTS, KINDS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 12
MET = (*(f"seen.{sight}" for sight in CHAIN_SIGHTS), *(f"fault.{kind}" for kind in dict.fromkeys(KINDS)))


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_in_chains_and_rings() -> None:
    reports = reports_that_meet("chain", MET, seeds=SEEDS, most=6 * SEEDS)
    assert all(report.confirmed and report.simulated_s >= DURATION_S for report in reports)
