"""Clients that a front sends on are measured, and a measurement that went wrong gives no figures."""

from __future__ import annotations

import pytest

from benchmarks import balancers
from benchmarks.processes import BenchmarkError
from benchmarks.runner import measure
from benchmarks.workload import Workload

pytestmark = pytest.mark.real


@pytest.mark.processes
def test_all_clients_are_sent_on_and_their_messages_come() -> None:
    figures = measure("ours", Workload(kind="redirects", count=120))
    assert figures["messages"] == 120 and figures["rate"] == 120 / figures["seconds"]
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] < 1_000 * figures["seconds"]


@pytest.mark.processes
def test_a_storm_of_clients_is_spread_evenly() -> None:
    figures = measure("ours", Workload(kind="storm", count=200))
    assert 1 <= figures["first_share"] <= 1.2
    assert 1 <= figures["share"] <= 1.2


def test_clients_that_are_missing_or_elsewhere_give_no_figures() -> None:
    even = dict.fromkeys(balancers.TARGETS, 25)
    assert balancers.share(even, 100) == 1
    assert balancers.share({**even, "north": 30, "east": 20}, 100) == 1.2
    for wrong in ({**even, "north": 24}, {**even, "north": 24, "front": 1}):
        with pytest.raises(BenchmarkError, match="100 clients are at"):
            balancers.share(wrong, 100)
