"""Two thousand schedules of a quorum, in which no two nodes may act for one node id at the same moment."""

from __future__ import annotations

from collections import Counter

import pytest

from qa.quorum.schedule import FAULTS, run_schedule

pytestmark = pytest.mark.seeds
#: What has to happen in them at all.
SIGHTS = (
    *FAULTS,
    "witness forgets",
    "locks",
    "lock refused",
    "quorum not reached",
    "releases",
    "leases run out",
    "records in doubt",
)


def test_no_two_nodes_act_at_once_in_two_thousand_schedules() -> None:
    counts, stored = Counter[str](), 0
    for seed in range(2_000):
        history = run_schedule(seed)
        assert not history.problems, f"python -m qa.quorum --first {seed} --schedules 1: {history.problems}"
        counts.update(history.counts)
        stored += len(history.stored)
    assert stored
    assert not [sight for sight in SIGHTS if not counts[sight]], counts
