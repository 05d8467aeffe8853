"""The queues that keep messages for other brokers, as a broker knows them: in order, and read page by page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshq.broker.catalog._demand_updates import KeptQueues
from meshq.broker.management import _network_demand
from meshq.network._kept_plan import KeptNames

ID, OTHER = "a" * 32, "b" * 32


class NamedQueue:
    """A queue that counts how often it is asked for its name."""

    asked = 0

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        NamedQueue.asked += 1
        return self._name


def kept(*names: str) -> KeptQueues:
    made = KeptQueues()
    for name in names:
        made.add(cast("Any", NamedQueue(name)))
    return made


def test_kept_queues_are_in_the_order_of_their_names_whenever_they_came() -> None:
    made = kept("t::c", "t::a", "s::b")
    assert [one.name for one in made.behind("")] == ["s::b", "t::a", "t::c"]
    made.remove(cast("Any", NamedQueue("t::a")))
    assert [one.name for one in made.behind("s::b")] == ["t::c"] and list(made.behind("t::c")) == []


def test_a_page_of_kept_queues_costs_no_more_the_more_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_network_demand, "permit", lambda *about: None)
    mine, others = KeptNames("hub", "b:1", ID), KeptNames("hub", "b:1", OTHER)
    topics = [f"t{number:04}" for number in range(1_000)]
    names = [f"{topic}::{whose.name(topic, '', 0)}" for topic in topics for whose in (mine, others)]
    router = cast("Any", SimpleNamespace(demand=SimpleNamespace(kept=kept(*names))))
    found: list[str] = []
    costs: list[int] = []
    more = True
    while more:
        NamedQueue.asked = 0
        about = {"node_id": ID, "beginning": mine.beginning, "after": found[-1] if found else ""}
        page = _network_demand.kept_queues(router, cast("Any", None), about)
        found += [one["queue"] for one in cast("list[dict[str, str]]", page["queues"])]
        costs.append(NamedQueue.asked)
        more = bool(page["more"])
    assert found == names[::2] and len(costs) > 20
    assert max(costs) < 5 * len(found) / len(costs) + 5
