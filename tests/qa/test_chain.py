"""The simulated chain: a run of its own, and bugs planted in what goes over more than one hop that it catches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.catalog._relay_table import RelayTable
from meshq.broker.ingress._distribution import shared
from meshq.broker.ingress._forwarded_places import ForwardedPlaces
from meshq.broker.ingress._redistribution import Redistribution
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.session._further_queues import FurtherQueues
from meshq.cluster._described_queues import DescribedQueues
from meshq.cluster._peer import Peer
from tests.qa.planted import brief_seed, first_report

shares, is_way, takers = ForwardedPlaces.shares, Peer._is_way, Redistribution.takers


def caught(*checkers: str) -> None:
    """See that one of these checkers finds something."""
    first_report("chain", *checkers)


@pytest.mark.slow
def test_a_chain_keeps_every_promise_in_a_run_of_its_own() -> None:
    report = brief_seed(20, "chain")
    assert report.passed, report.line
    assert report.confirmed > 50 and report.faults > 1
    assert report.line.endswith(" -- python -m qa.simulate --seed 20 --chain")


@pytest.mark.slow
def test_a_node_that_deals_again_what_it_only_passes_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def dealt_again(self: ForwardedPlaces, run: Any, queues: Sequence[int], rows: range, **about: Any) -> Any:
        address = self._definitions.router.addresses.get(run.address)
        passed_on = self._definitions.router.relays.places(run.address, queues)
        if passed_on and address is not None:
            return shared(run, address, None, rows), []
        return shares(self, run, queues, rows, **about)

    monkeypatch.setattr(ForwardedPlaces, "shares", dealt_again)
    caught("H1", "H3", "H4")


@pytest.mark.slow
def test_a_hop_that_is_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(self: Peer, path: tuple[str, ...]) -> bool:
        return is_way(self, path) and 2 * len(path) - 1 <= self._settings.max_hops

    monkeypatch.setattr(Peer, "_is_way", longer)
    caught("H2")


@pytest.mark.slow
def test_a_way_that_leads_back_and_is_believed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "_is_way", lambda self, path: len(path) <= self._settings.max_hops)
    caught("H2", "H3")


@pytest.mark.slow
def test_a_queue_that_is_gone_behind_a_node_and_still_believed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    say = FurtherQueues._say

    def nothing_of_the_end(self: FurtherQueues, channel: int, header: bytes) -> None:
        if b"gone" not in header:
            say(self, channel, header)

    monkeypatch.setattr(FurtherQueues, "_say", nothing_of_the_end)
    caught("H2")


@pytest.mark.slow
def test_a_queue_that_is_believed_and_told_after_its_session_is_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DescribedQueues, "clear", lambda self: None)
    caught("H2")


@pytest.mark.slow
def test_a_node_that_tells_of_one_hop_too_few_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = FurtherQueues.open
    monkeypatch.setattr(
        FurtherQueues,
        "open",
        lambda self, channel, opening: begin(self, channel, attrs.evolve(opening, hops=opening.hops - 1)),
    )
    caught("H2")


@pytest.mark.slow
def test_a_number_that_stands_for_another_queue_after_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    put = RelayTable.put
    monkeypatch.setattr(
        RelayTable, "put", lambda self, relay, place: put(self, relay, place._replace(number=max(1, place.number - 1)))
    )
    caught("H1", "H2", "H3")


@pytest.mark.slow
def test_messages_that_stay_because_their_consumer_is_more_than_one_hop_away_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def near(self: Redistribution, queue: Queue) -> list[RemoteBinding]:
        return [one for one in takers(self, queue) if one.distance == 1]

    monkeypatch.setattr(Redistribution, "takers", near)
    caught("H7")
