"""The simulated mesh that forms by discovery: a run of its own, and bugs planted in discovery that it catches."""

from __future__ import annotations

import pytest
import trio

from meshq.client.link._discovered_targets import DiscoveredTopology
from meshq.cluster._dial_plan import DialPlan, DialRules
from meshq.cluster._peer import Peer
from tests.qa.planted import brief_seed, first_report

SEED = 3

plan = DialRules.plan


@pytest.mark.slow
def test_a_mesh_that_forms_by_discovery_keeps_every_promise_in_a_run_of_its_own() -> None:
    report = brief_seed(SEED, "discovery")
    assert report.passed, report.line
    assert report.counters["seen.moved"] > 0
    assert report.counters["seen.datagram_lost"] > 0
    assert report.line.endswith(" -- python -m qa.simulate --seed 3 --discovery")


@pytest.mark.slow
def test_a_node_that_is_looked_for_at_its_old_place_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_again(self: DialRules, nodes: object, dialed: object) -> DialPlan:
        found = plan(self, nodes, dialed)  # type: ignore[arg-type]
        known = {one.url.split(":")[1] for one in dialed}  # type: ignore[attr-defined]
        return DialPlan([url for url in found.begin if url.split(":")[1] not in known], found.end, found.refused)

    monkeypatch.setattr(DialRules, "plan", never_again)
    first_report("discovery", "Q14")


@pytest.mark.slow
def test_a_client_that_hears_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(self: DiscoveredTopology) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(DiscoveredTopology, "run", deaf)
    first_report("discovery", "Q14", what="clients that have found no node")


@pytest.mark.slow
def test_places_that_are_dialed_for_ever_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "needed", property(lambda self: True))
    first_report("discovery", "Q14", what="at which no node is")
