"""Brokers of a measured network forward everything once, and a measurement that went wrong gives no figures."""

from __future__ import annotations

import pytest

from benchmarks import networks
from benchmarks.processes import BenchmarkError, Process
from benchmarks.runner import measure
from benchmarks.workload import Workload

pytestmark = [pytest.mark.real, pytest.mark.processes]


def test_messages_that_go_over_hops_are_held_against_one_broker_of_the_same_run() -> None:
    figures = measure("ours", Workload(kind="hops", nodes=3, count=2_000))
    assert figures["rate"] == 2_000 / figures["seconds"]
    assert figures["to_one_broker"] == figures["rate"] / figures["one_broker_rate"]
    assert figures["cpu_per_hop_us"] > 0 and figures["one_broker_cpu_us"] > 0


def test_a_chain_in_which_a_message_was_stored_twice_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Process.result

    def one_more(self: Process, timeout: float) -> dict[str, float]:
        found = result(self, timeout)
        return {**found, "added": found["added"] + 1} if self.name.startswith("network_nodes") else found

    monkeypatch.setattr(networks.Process, "result", one_more)
    with pytest.raises(BenchmarkError, match="of 200"):
        measure("ours", Workload(kind="hops", nodes=2, count=200))


def test_demand_is_told_to_a_broker_that_links_and_to_one_that_links_again() -> None:
    figures = measure("ours", Workload(kind="demand", queues=50))
    assert 0 < figures["exchange_s"] < 30 and 0 < figures["again_s"] < 30
    assert figures["subscriptions"] == 50 and figures["again_cpu_s"] > 0
