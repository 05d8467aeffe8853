"""The simulated network of brokers: runs of their own, and a checker that can find something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshq.broker.network._replay_plan import ReplayFilter
from meshq.selector import Filter, parse_filter
from meshq.wire import BrokerPath, PathStep
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


def _accepts_all(name: str) -> Callable[..., None]:
    """A filter of what goes back that leaves a part of its condition out."""
    made = ReplayFilter.__init__
    instead: dict[str, Any] = {"others": [], "wanted": parse_filter("TRUE")}

    def begin(self: ReplayFilter, onward: Filter, **about: Any) -> None:
        made(self, onward, **{**about, name: instead[name]})

    return begin


@pytest.mark.slow
@pytest.mark.parametrize("name", ["others", "wanted"])
def test_messages_that_go_back_without_the_filter_here_or_there_are_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(ReplayFilter, "__init__", _accepts_all(name))
    assert "W9" in str(STAGES["network"](1).failure)


@pytest.mark.slow
def test_a_path_that_grows_where_a_message_goes_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def beyond(self: BrokerPath, step: PathStep, target_id: str) -> BrokerPath:
        return self._replace(steps=(*self.steps, step), returns=self.returns + 1)

    monkeypatch.setattr(BrokerPath, "beyond", beyond)
    assert "W3" in str(STAGES["network"](1).failure)


@pytest.mark.slow
def test_messages_that_go_back_for_ever_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = BrokerPath.beyond

    def beyond(self: BrokerPath, step: PathStep, target_id: str) -> BrokerPath:
        been = made(self, step, target_id)
        return been._replace(returns=min(been.returns, 1))

    monkeypatch.setattr(BrokerPath, "beyond", beyond)
    assert "still under way" in str(STAGES["network"](16).failure)
