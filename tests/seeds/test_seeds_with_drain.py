"""Seeds of the mesh with a node that drains and goes for good, always the same: its messages are on the other node."""

from __future__ import annotations

import pytest

from qa.mesh.departure import DRAIN_SIGHTS, DRAINED
from qa.mesh.sent_away import SENT_AWAY_SIGHTS
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 4
MET = (
    *(f"seen.{sight}" for sight in (*DRAIN_SIGHTS, *SENT_AWAY_SIGHTS)),
    "fault.partition",
    "node.kill",
    "node.power_off",
    "seen.peer_away",
    "seen.peer_left",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_while_a_node_drains_and_goes() -> None:
    reports = reports_that_meet("drain", MET, seeds=SEEDS, most=8 * SEEDS)
    # Counted where they come: a step of a move is not counted if its node dies before the step has returned.
    assert all(report.counters["seen.drained_there"] == sum(DRAINED.values()) for report in reports)
    assert all(report.counters["seen.drained"] > 0 for report in reports)
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
