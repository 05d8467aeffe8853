"""The measurements of pairs add up what their trials have found."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.pairs import summed_up
from benchmarks.runner import measure
from benchmarks.workload import Workload


def test_an_outage_is_told_by_its_percentiles_and_its_parts_by_their_medians() -> None:
    trials = [
        {"outage": 0.1 * number, "noticed": 0.05 * number, "opened": 0.03 * number, "reached": 0.02 * number}
        for number in (3, 1, 2)
    ]
    assert summed_up(trials) == pytest.approx(
        {"p50_s": 0.2, "p99_s": 0.3, "noticed_s": 0.1, "opened_s": 0.06, "reached_s": 0.04, "trials": 3}
    )
    many = [{"outage": float(number), "noticed": 0.0, "opened": 0.0, "reached": 0.0} for number in range(1, 201)]
    assert summed_up(many)["p99_s"] == 199.0


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.parametrize(
    "about",
    [
        {"policy": "shared_store", "tuned": True},
        {"policy": "replication", "tuned": True, "silent": True},
    ],
)
def test_the_client_of_a_pair_has_a_confirm_again_after_each_loss(about: dict[str, Any]) -> None:
    figures = measure("ours", Workload(kind="failover", count=100, trials=2, **about))
    assert figures["trials"] == 2
    assert 0 < figures["p50_s"] <= figures["p99_s"] < 30


@pytest.mark.real
@pytest.mark.processes
def test_a_stream_to_a_replica_is_held_against_one_to_a_node_alone() -> None:
    figures = measure("ours", Workload(kind="replicated", policy="replication", count=2_000))
    assert figures["share"] == figures["rate"] / figures["plain_rate"]
