"""Seeds of the mesh that forms by discovery, always the same: nodes move, and a stranger invents others."""

from __future__ import annotations

import pytest

from qa.mesh.discovery import DISCOVERY_SIGHTS
from qa.mesh.finder import FINDER_SIGHTS
from qa.seeds import many_seeds
from tests.tiers import cores_of_a_test

#: For all seeds on one slow core.
TIMEOUT_S = 1_800
SEEDS = 12
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
    reports = list(many_seeds(range(SEEDS), cores_of_a_test(), "discovery"))
    assert [report.line for report in reports if not report.passed] == []
    assert [kind for kind in MET if not sum(report.counters[kind] for report in reports)] == []
    assert all(report.confirmed >= 300 and report.simulated_s >= 60 for report in reports)
