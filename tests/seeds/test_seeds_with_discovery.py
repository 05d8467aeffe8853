"""Seeds of the mesh that forms by discovery, always the same: nodes move, and a stranger invents others."""

from __future__ import annotations

import pytest

from qa.mesh.discovery import DISCOVERY_SIGHTS
from qa.mesh.finder import FINDER_SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 4
MET = (
    "fault.move",
    "fault.silent_lan",
    "fault.partition",
    "node.kill",
    "node.power_off",
    "seen.peer_away",
    *(f"seen.{sight}" for sight in (*DISCOVERY_SIGHTS, *FINDER_SIGHTS)),
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_while_nodes_find_each_other_and_move() -> None:
    reports = reports_that_meet("discovery", MET, seeds=SEEDS, most=8 * SEEDS)
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
