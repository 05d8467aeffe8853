"""The queues that keep messages for other brokers, as a broker knows them: in order, and read page by page."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshq.broker.catalog._demand_updates import KeptQueues
from meshq.broker.catalog._network_demand_plan import LOOKS_MAX, Arrivals
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


def test_a_message_came_between_the_looks_around_it_whatever_its_sender_says() -> None:
    made = Arrivals(1_000)
    made.look(0, 2_000)
    made.look(5, 3_000)
    made.look(5, 9_000)
    made.look(6, 9_500)
    assert [made.came(3, sent) for sent in (0, 2_500, 1 << 60)] == [2_000, 2_500, 3_000]
    assert [made.came(6, sent) for sent in (0, 9_100, 1 << 60)] == [9_000, 9_100, 9_500]


def test_of_what_was_there_at_a_start_the_sender_is_believed_up_to_the_first_look() -> None:
    made = Arrivals(-math.inf)
    made.look(5, 3_000)
    assert [made.came(1, sent) for sent in (1, 2_000, 1 << 60)] == [1, 2_000, 3_000]


def test_no_more_looks_are_remembered_than_need_be_and_what_they_say_stays_true() -> None:
    made = Arrivals(0)
    for number in range(1, 10_000):
        made.look(number, number * 10)
    assert len(made._looks) <= LOOKS_MAX
    assert made.came(1, 0) == 0 and made.came(1, 1 << 60) >= 10
    for number in (5_000, 9_998):
        assert made.came(number, 0) <= number * 10 <= made.came(number, 1 << 60)
    assert made.came(9_999, 0) == 99_980


def test_the_age_of_what_is_kept_is_not_that_of_a_clock_that_is_wrong_by_a_year() -> None:
    names = KeptNames("hub", "b:1", ID)
    head = SimpleNamespace(head=None)
    queue = SimpleNamespace(
        name=f"t::{names.name('t', '', 0)}",
        last=0,
        oldest=1,
        counts=SimpleNamespace(ready=0, unacked=0, delayed=0),
        lists=SimpleNamespace(all=[head]),
    )
    router = cast("Any", SimpleNamespace(demand=SimpleNamespace(kept=KeptQueues())))
    now_ms, year_ms = 1_000_000_000_000, 366 * 86_400_000

    def told_after(elapsed_ms: float, *, ahead_ms: int = 0) -> tuple[int, float | None]:
        wall_ms = now_ms + int(elapsed_ms) + ahead_ms
        return _network_demand.kept_messages(router, ID, names.beginning, wall_ms, elapsed_ms)

    told = told_after(0)
    router.demand.kept.add(queue)
    assert told == (0, None)
    # It came after a look at which its queue was not there, from a sender whose clock is a year behind.
    queue.last, queue.counts.ready = 1, 1
    head.head = SimpleNamespace(run=SimpleNamespace(stamp=now_ms - year_ms))
    assert (told_after(10_000), told_after(70_000)) == ((1, 10), (1, 70))
    # One whose clock is right comes after a look at which the clock here was wrong, and set right since.
    for at, ahead_ms in ((80_000, year_ms), (3_000_000, -year_ms)):
        told_after(at, ahead_ms=ahead_ms)
        queue.last = queue.oldest = queue.last + 1
        head.head = SimpleNamespace(run=SimpleNamespace(stamp=now_ms + at + 5_000))
        assert (told_after(at + 10_000), told_after(at + 1_800_000)) == ((1, 5), (1, 1_795))
