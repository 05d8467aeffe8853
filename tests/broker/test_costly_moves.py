"""What the node moves, and groups: costly filters are asked in steps there, too."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    Envelope,
    encode_map,
)
from tests.broker.costly import (
    BUDGET,
    FILTER,
    ROWS,
    WANTED,
    Steps,
    fill,
    lettered,
    numbered,
    read,
    sieve,
    with_k,
)
from tests.broker.kit import RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.test_subscriptions import subscribe

# -- what the node itself moves


@pytest.mark.parametrize("why", ["rejected", "attempts", "expired", "moved", "redriven"])
def test_what_the_node_moves_is_put_to_the_filters_of_its_target_in_steps(steps: Steps, why: str) -> None:
    now = [1_000_000]
    house, client = lettered(steps, max_delivery_attempts=1, now_ms=lambda: now[0])
    headers: dict[str, Any] = {"x": 1_000} if why == "expired" else {}
    fill(client, "work", **headers)
    steps.looks = 0
    if why in ("moved", "redriven"):
        client.call("move_messages", name="work", address="in")
    elif why == "expired":
        now[0] += 2_000
        house.core.clock_moved()
    else:
        channel = client.consume("work")
        # Rejected, or returned.
        client.settle(channel, (1, ROWS), flags=2 if why == "rejected" else 1)
        client.leave(channel)
    assert steps.looks <= BUDGET
    steps.all(house)
    assert read(house, "some") == WANTED and read(house, "all") == numbered()
    assert house.queue("work").lists.live_runs == 0
    if why == "redriven":
        client.call("create_queue", name="sorted", address="work", filter=FILTER)
        client.call("redrive", name="all")
        steps.all(house)
        assert sorted(read(house, "work")) == sorted(numbered())


def test_who_takes_some_of_what_waits_for_filters_keeps_it(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    sieve(client)
    client.call("create_queue", name="work")
    fill(client, "work")
    assert client.call("move_messages", name="work", address="in") is None
    steps.one(house)
    channel = client.consume("work", window=5)
    client.settle(channel, (1, 5))
    client.leave(channel)
    steps.all(house)
    assert client.bodies(channel)[:5] == numbered(5)
    assert read(house, "some") == [b"7", b"10"]


@pytest.mark.parametrize("how", ["one after the other", "at once"])
def test_all_that_is_rejected_goes_when_filters_have_said_what_they_say(steps: Steps, how: str) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    ranges = [(1, 6), (8, 8), (10, 10), (12, 12)]
    for some in [ranges] if how == "at once" else [[one] for one in ranges]:
        client.settle(channel, *some, flags=2)
    steps.all(house)
    assert sorted(read(house, "all")) == sorted([*numbered(6), b"8", b"10", b"12"])
    assert sorted(read(house, "some")) == sorted([b"1", b"4", b"10"])
    assert house.queue("work").counts.delayed == 0


def test_what_finds_no_room_as_others_are_put_to_filters_may_be_had_again_a_second_later(steps: Steps) -> None:
    now = [1_000_000]
    house, client = lettered(steps, now_ms=lambda: now[0])
    fill(client, "work")
    client.put(client.produce("work", b"another producer"), b"one")
    channel = client.consume("work")
    house.log.full = True
    client.settle(channel, (1, ROWS + 1), flags=2)
    now[0] += 1_100
    house.core.clock_moved()
    assert client.bodies(channel)[ROWS:] == [b"one", b"one"]
    house.log.full = False
    steps.all(house)
    assert read(house, "all") == numbered()


def test_what_is_rejected_by_who_goes_then_is_moved_before_its_queue_goes(steps: Steps) -> None:
    house, client = lettered(steps, queue=False)
    other = house.client()
    channel = subscribe(other, "work")
    (name,) = [queue.name for queue in house.core.router.addresses["work"].queues]
    fill(client, "work")
    assert len(other.bodies(channel)) == 10
    other.settle(channel, (1, 8), flags=2)
    other.leave(channel)
    other.close()
    steps.all(house)
    assert read(house, "all") == numbered(8) and read(house, "some") == [b"1", b"4", b"7"]
    assert name not in house.core.router.queues


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_rejected_goes_though_its_content_has_gone_to_the_disk(steps: Steps, when: str) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 6), (8, ROWS), flags=2)
    (view,) = house.queue("work").runs()
    if when == "meanwhile":
        steps.one(house)
    content = view.run.content
    view.run.forget()
    for _ in range(20):
        steps.one(house)
    assert not house.queue("all").counts.added and not house.core.pending.fair_scheduler
    assert house.core.pager.next_reads() == [view.run]
    house.core.pager.arrived({view.run: content})
    steps.all(house)
    assert sorted(read(house, "all")) == sorted([*numbered(6), *numbered()[7:]])
    assert house.queue("work").counts.delayed == 0 and house.queue("work") not in house.core.mover.pending_moves


def test_what_was_moved_keeps_nothing_of_what_filters_have_said(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    client.call("move_messages", name="work", address="in")
    steps.all(house)
    assert read(house, "all") == numbered()
    assert not any(view.run.verdicts for view in house.queue("all").runs())


# -- groups


def test_messages_of_groups_are_put_to_a_filter_in_steps(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    for number in range(5):
        fill(client, "q", producer=b"%16d" % number, g="a")
    channel = client.consume("q", filter="k = 1")
    assert steps.looks <= BUDGET and client.bodies(channel) == []
    steps.all(house)
    assert client.bodies(channel) == WANTED * 5 and steps.looks <= 5 * ROWS + 10
    # What comes later is looked at in steps, too, by who has the group already.
    before = steps.looks
    fill(client, "q", producer=b"p" * 16, g="a")
    assert steps.looks - before <= BUDGET
    steps.all(house)
    assert client.bodies(channel) == WANTED * 6


def test_who_has_no_filter_is_not_held_up_by_one_that_looks_at_groups(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    for number in range(5):
        fill(client, "q", producer=b"%16d" % number, g=f"g{number}")
    channel = client.consume("q", filter="k = 5")
    plain = other.consume("q")
    for _ in range(3):
        # The mark of what may be delivered moves with the disk.
        steps.one(house)
    assert house.queue("q").grouped.filter_scan  # type: ignore[union-attr]
    assert len(other.bodies(plain)) + len(client.bodies(channel)) == 5 * ROWS
    steps.all(house)


def test_a_filter_that_goes_while_it_looks_at_groups_leaves_nothing(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client = house.client()
    for number in range(5):
        fill(client, "q", producer=b"%16d" % number, g="a")
    channel = client.consume("q", filter="k = 1")
    steps.one(house)
    client.leave(channel)
    grouped = house.queue("q").grouped
    assert grouped is not None and not grouped.filter_scan
    house.check()
    channel = client.consume("q", filter="k = 1")
    steps.all(house)
    assert client.bodies(channel) == WANTED * 5


def of_group(client: RawClient, *wanted: int, priority: int, group: str = "a", producer: bytes) -> None:
    """A run of a group in which some of the messages are wanted."""
    kind = priority << 8 | KIND_PROPERTIES | KIND_HEADERS | KIND_CONTROL
    about = [Envelope(kind, b"", encode_map({"g": group}), encode_map({"k": k})) for k in wanted]
    channel = client.produce("q", producer)
    client.put(channel, *[b"%d of %s" % (row, producer[:4]) for row in range(len(wanted))], envelopes=about)


def test_what_is_more_urgent_than_messages_of_its_group_that_are_looked_at_is_found(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    channel = other.consume("q", filter="k = 1")
    of_group(client, *[0] * ROWS, priority=4, producer=b"late" * 4)
    of_group(client, 0, 1, priority=9, producer=b"soon" * 4)
    steps.all(house)
    assert other.bodies(channel) == [b"1 of soon"]


def test_what_is_offered_waits_for_what_is_more_urgent_and_not_looked_at_yet(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    channel = other.consume("q", window=1, filter="k = 1")
    of_group(client, 1, priority=4, group="b", producer=b"held" * 4)
    of_group(client, 1, priority=4, producer=b"late" * 4)
    steps.all(house)
    assert other.bodies(channel) == [b"0 of held"]
    of_group(client, *[0] * ROWS, 1, priority=9, producer=b"soon" * 4)
    other.settle(channel, (1, 1))
    steps.all(house)
    other.settle(channel, (2, 2))
    steps.all(house)
    assert other.bodies(channel) == [b"0 of held", b"12 of soon", b"0 of late"]


def test_nothing_less_urgent_overtakes_what_is_of_a_group_and_not_looked_at_yet(steps: Steps) -> None:
    house = steps.watch(make_house(FakeLog()))
    client, other = house.client(), house.client()
    channel = other.consume("q", filter="k = 1")
    of_group(client, 1, priority=9, producer=b"here" * 4)
    steps.all(house)
    of_group(client, *[0] * ROWS, 1, priority=9, producer=b"soon" * 4)
    client.put(client.produce("q", b"late" * 4), b"late", envelopes=with_k(1))
    steps.all(house)
    assert other.bodies(channel) == [b"0 of here", b"12 of soon", b"late"]
