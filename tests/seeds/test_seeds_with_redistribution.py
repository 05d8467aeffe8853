"""Seeds of the mesh with a redistributor in each node, always the same: messages go where their consumers go."""

from __future__ import annotations

import pytest

from qa.mesh.stranded import MESSAGES
from qa.seeds import many_seeds
from tests.tiers import cores_of_a_test

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 12
MET = (
    "fault.partition",
    "node.kill",
    "node.power_off",
    "seen.kept_for_a_consumer",
    "seen.peer_away",
    "seen.redistributed",
)


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_while_messages_go_from_node_to_node() -> None:
    reports = list(many_seeds(range(SEEDS), cores_of_a_test(), "redistribution"))
    assert [report.line for report in reports if not report.passed] == []
    assert [kind for kind in MET if not sum(report.counters[kind] for report in reports)] == []
    # One of the three nodes may be gone for good in the end.
    assert all(report.counters["seen.redistributed"] >= 2 * MESSAGES for report in reports)
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
