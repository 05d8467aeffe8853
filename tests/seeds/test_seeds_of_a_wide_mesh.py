"""Seeds of a mesh of four to seven nodes, always the same: what holds for three holds for more."""

from __future__ import annotations

import pytest

from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 4
MET = (
    "fault.partition",
    "node.kill",
    "node.power_off",
    "seen.bridged",
    "seen.client_was_told",
    "seen.partial_lists",
    "seen.peer_away",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_in_a_mesh_of_more_nodes() -> None:
    reports = reports_that_meet("wide", MET, seeds=SEEDS, most=10 * SEEDS)
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
