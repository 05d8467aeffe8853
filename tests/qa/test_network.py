"""The simulated network of brokers: runs of their own, and a checker that can find something."""

from __future__ import annotations

import pytest

from qa.network.scenario import SimulatedNetwork
from qa.network.shape import TOPOLOGIES
from qa.seeds import STAGES, one_seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 4, 12])
def test_a_network_keeps_every_promise_in_a_run_of_its_own(seed: int) -> None:
    report = one_seed(seed, "network")
    assert report.passed, report.line
    assert report.confirmed > 100 and report.faults
    assert report.counters["seen.duplex"] + report.counters["seen.pairs"] == 1
    assert report.counters[f"seen.{TOPOLOGIES[seed % len(TOPOLOGIES)]}"] == 1
    assert report.counters["seen.forwarded"]


@pytest.mark.slow
def test_a_message_that_is_nowhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    account = SimulatedNetwork.account

    async def with_one_more(self: SimulatedNetwork) -> None:
        self.confirmed.add("n0-lost")
        await account(self)

    monkeypatch.setattr(SimulatedNetwork, "account", with_one_more)
    assert "W1" in str(STAGES["network"](1).failure)
