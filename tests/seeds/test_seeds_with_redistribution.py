"""Seeds of the mesh with a redistributor in each node, always the same: messages go where their consumers go."""

from __future__ import annotations

import pytest

from qa.mesh.stranded import MESSAGES
from tests.seeds.meeting import reports_that_meet

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 4
UNMATCHED = "seen.unmatched"
MET = (
    "fault.partition",
    "node.kill",
    "node.power_off",
    "seen.kept_for_a_consumer",
    "seen.peer_away",
    "seen.redistributed",
    "seen.redistributed_again",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_while_messages_go_from_node_to_node() -> None:
    reports = reports_that_meet("redistribution", MET, seeds=SEEDS, most=8 * SEEDS)
    for report in reports:
        # Where what no consumer takes goes, too, every other message is taken, and stays.
        go = MESSAGES // 2 if report.counters[UNMATCHED] else MESSAGES
        # One of the three nodes may be gone for good in the end.
        assert report.counters["seen.redistributed"] >= 2 * go
    assert {report.counters[UNMATCHED] > 0 for report in reports} == {False, True}
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
