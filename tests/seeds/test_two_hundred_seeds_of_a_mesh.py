"""Two hundred seeds of the mesh, always the same, and each that ever failed."""

from __future__ import annotations

import pytest

from qa.mesh.faults import LINK_FAULTS, MESH_KINDS
from qa.mesh.scenario import MESH_SIGHTS
from qa.simulate import SEEDS
from qa.simulation.broker import SIGHTS
from tests.seeds.always import FAILPOINTS, MESH_FAILPOINTS, TIMEOUT_S, check_all_was_met, expected_of, reports_of_all


@pytest.mark.seeds
@pytest.mark.timeout(TIMEOUT_S)
def test_every_promise_is_kept_on_a_mesh_in_two_hundred_seeds_that_meet_every_fault() -> None:
    sights = (*SIGHTS, *MESH_SIGHTS, "expired_in_doubt")
    expected = expected_of(MESH_KINDS, sights=sights, failpoints=(*FAILPOINTS, *MESH_FAILPOINTS))
    check_all_was_met(reports_of_all("mesh", seeds=SEEDS, expected=expected), expected)
    assert len(LINK_FAULTS) >= 6
