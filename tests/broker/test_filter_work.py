"""Filters that cost much: a step is bounded by the work that they are, wherever they are asked."""

from __future__ import annotations

from collections import Counter

import pytest

from meshq import limits
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.wire import (
    KIND_HEADERS,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Consume,
    Envelope,
    FrameType,
    PathStep,
    encode_map,
    encode_path,
    encode_run,
)
from tests.broker.kit import RawClient, make_house
from tests.broker.queues import PRODUCER, dealt, join, leave, make_queue, numbers, put

TEXT = "a" * 60_000
HEAVY = " OR ".join(["p LIKE '%_b%'"] * 110)
#: Every third message of a run is wanted.
MIXED = [{"p": TEXT + "b" * (row % 3 == 0)} for row in range(12)]
WANTED = [1, 4, 7, 10]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often messages were put to filters."""
    counted: Counter[str] = Counter()
    move = RunMessages.move

    def counting(self: RunMessages, row: int, *, properties: bool) -> None:
        counted["moved"] += 1
        move(self, row, properties=properties)

    monkeypatch.setattr(RunMessages, "move", counting)
    return counted


def step(queue: Queue) -> list[int]:
    return [number for _, dispatch in queue.dispatch() for number in numbers(dispatch)]


def test_a_step_of_a_filter_that_costs_much_is_one_message(looks: Counter[str]) -> None:
    queue = make_queue()
    join(queue, filter=HEAVY)
    put(queue, values=MIXED)
    for steps in range(1, 12):
        assert step(queue) == [] and queue.pending.unfinished and looks["moved"] == steps
        queue.check()
    assert step(queue) == WANTED and not queue.pending.unfinished and looks["moved"] == 12


@pytest.mark.slow
def test_many_filters_that_cost_little_count_as_one_that_costs_much(looks: Counter[str]) -> None:
    queue = make_queue()
    terms = " OR ".join(f"k = {number} AND j > 1" for number in range(60))
    for number in range(100):
        join(queue, number=number, filter=f"m = {number} OR {terms}")
    put(queue, values=[{"k": -1}] * 256)
    assert step(queue) == [] and queue.pending.unfinished and looks["moved"] < 10
    assert dealt(queue) == {number: [] for number in range(100)}


@pytest.mark.slow
def test_filters_that_are_found_by_a_value_count_by_what_else_they_ask(looks: Counter[str]) -> None:
    queue = make_queue()
    terms = " OR ".join(["k=1"] * 120)
    for number in range(100):
        join(queue, number=number, filter=f"m = 1 AND (k = -{number + 2} OR {terms})")
    put(queue, values=[{"m": 1, "k": -1}] * 256)
    assert step(queue) == [] and queue.pending.unfinished and looks["moved"] < 10
    assert dealt(queue) == {number: [] for number in range(100)}


def test_runs_with_groups_are_put_to_filters_in_steps_too(monkeypatch: pytest.MonkeyPatch, looks: Counter[str]) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 100)
    queue = make_queue()
    join(queue, filter="k = 1")
    for _ in range(6):
        put(queue, values=[{"k": 2}] * 60, groups=["a"] * 60)
    # What is taken as it comes, and what waits: a run of each at first.
    for looked in (120, 180, 240, 300, 360):
        assert step(queue) == [] and looks["moved"] == looked
    assert not queue.pending.unfinished


@pytest.mark.parametrize("same", [False, True])
def test_who_comes_in_the_middle_of_a_run_misses_nothing_of_it(same: bool) -> None:
    queue = make_queue()
    first = join(queue, number=1, filter=HEAVY)
    put(queue, values=MIXED)
    for _ in range(5):
        assert step(queue) == []
    join(queue, number=2, filter=HEAVY if same else "p LIKE '%b'")
    if same:
        leave(first)
    else:
        first.set_willing(False)
    assert dealt(queue)[2] == WANTED


def test_who_goes_and_comes_again_in_the_middle_of_a_run_gets_each_message_once() -> None:
    queue = make_queue()
    leave(join(queue, number=1, filter="k = 1"))
    first = join(queue, number=1, filter=HEAVY)
    join(queue, number=3, filter="p LIKE '%ab'")
    put(queue, values=MIXED)
    for _ in range(7):
        assert step(queue) == []
    leave(first)
    join(queue, number=4, filter=HEAVY)
    found = dealt(queue)
    assert sorted(found[3] + found[4]) == WANTED


def test_one_that_came_late_looks_alone_and_in_steps_too(looks: Counter[str]) -> None:
    queue = make_queue()
    join(queue, number=1, filter="k = 1")
    put(queue, values=MIXED)
    assert step(queue) == [] and looks["moved"] == 12
    join(queue, number=2, filter=HEAVY)
    assert step(queue) == [] and queue.pending.unfinished and looks["moved"] == 13
    assert dealt(queue)[2] == WANTED


@pytest.mark.parametrize("late", [False, True])
def test_a_run_may_go_in_the_middle(late: bool) -> None:
    queue = make_queue()
    join(queue, number=1, filter="k = 1" if late else HEAVY)
    put(queue, values=MIXED)
    assert step(queue) == []
    if late:
        join(queue, number=2, filter=HEAVY)
        assert step(queue) == []
    queue.purge(1_000)
    queue.check()
    put(queue, values=MIXED)
    assert dealt(queue)[2 if late else 1] == [number + 12 for number in WANTED]


def test_light_filters_take_whole_runs_whatever_their_bodies_are(looks: Counter[str]) -> None:
    queue = make_queue()
    join(queue, filter="k = 1 AND j LIKE 'x%'")
    for _ in range(4):
        put(queue, values=[{"k": 1, "j": "y"}] * 50, size=2_000)
    assert step(queue) == [] and not queue.pending.unfinished and looks["moved"] == 200


# -- at a broker


def fill(client: RawClient, queue: str, rows: int = 12) -> None:
    envelopes = [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map(values)) for values in MIXED[:rows]]
    client.put(client.produce(queue), *(b"%d" % row for row in range(1, rows + 1)), envelopes=envelopes)


def consume(client: RawClient, queue: str, **options: bool) -> int:
    client.channels += 1
    header = Consume(queue=queue, window=100, window_bytes=1 << 24, filter=HEAVY, **options)
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client.channels


def test_of_many_queues_one_is_looked_at_between_two_turns_of_the_others(looks: Counter[str]) -> None:
    house = make_house()
    house.host.wake = lambda: looks.update(["asked"])
    client = house.client()
    for queue in "abc":
        fill(client, queue)
    channels = [consume(client, queue) for queue in "abc"]
    assert looks["moved"] == 3
    # Whatever comes meanwhile, each of them has had its turn.
    for queue in "abc":
        fill(client, queue, 1)
    assert looks["moved"] == 3
    steps = 0
    while house.core.pending.unfinished:
        before = looks.copy()
        house.core.resume()
        steps += 1
        assert looks["moved"] - before["moved"] <= 2
        assert looks["asked"] > before["asked"] or not house.core.pending.unfinished
    assert steps >= 3 * 11
    for channel in channels:
        assert client.bodies(channel) == [b"1", b"4", b"7", b"10", b"1"]
    house.check()


def test_a_browse_with_a_filter_that_costs_much_goes_in_steps(looks: Counter[str]) -> None:
    house = make_house()
    house.host.wake = lambda: looks.update(["asked"])
    client = house.client()
    fill(client, "q")
    channel = consume(client, "q", browse=True)
    for steps in range(1, 12):
        assert looks["moved"] == steps and looks["asked"] == steps
        house.core.resume()
    assert client.bodies(channel) == [b"1", b"4", b"7", b"10"]
    assert client.all(FrameType.CONSUMER_LOST)


@pytest.mark.parametrize("taken", [False, True])
def test_moving_with_a_filter_that_costs_much_goes_in_steps(looks: Counter[str], taken: bool) -> None:
    house = make_house()
    house.host.wake = lambda: looks.update(["asked"])
    client = house.client()
    fill(client, "q")
    assert client.call("move_messages", name="q", address="other", filter=HEAVY) is None
    call = client.calls
    # Users take turns from the first step on.
    assert looks["moved"] == 0 and looks["asked"] == 1
    for steps in range(1, 12):
        house.core.resume()
        assert looks["moved"] == steps
        if taken and steps == 6:
            # What is left of the run goes to somebody else.
            reader = client.consume("q")
            client.settle(reader, (1, 4))
        if taken and steps >= 6:
            break
    while client.answer(call) is None:
        house.core.resume()
    found = client.answer(call)
    assert found is not None and found.named == {"moved": 2 if taken else 4}
    house.check()


def test_a_light_message_costs_a_unit(monkeypatch: pytest.MonkeyPatch, looks: Counter[str]) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 100)
    queue = make_queue()
    join(queue, filter="k LIKE 'a%'")
    put(queue, values=[{"k": "b"}] * 250)
    for looked in (100, 200):
        assert step(queue) == [] and queue.pending.unfinished and looks["moved"] == looked
    assert step(queue) == [] and not queue.pending.unfinished and looks["moved"] == 250


def on_ways(ways: list[list[str]]) -> StoredRun:
    """A run of messages that have come on these ways, by the ids of the brokers."""
    envelopes = []
    for way in ways:
        headers = {"b": b"", "p": encode_path([PathStep(node_id, "") for node_id in way])} if way else {}
        envelopes.append(Envelope(KIND_PLAIN | KIND_HEADERS * bool(way), b"", encode_map(headers) if way else b"", b""))
    content = encode_run([b"x"] * len(ways), envelopes)
    return StoredRun("q", content, durable=True, producer=PRODUCER, number=1, stamp=0)


@pytest.mark.parametrize("late", [False, True])
def test_messages_that_have_come_one_way_are_put_once_to_a_filter_that_asks_for_the_path(
    looks: Counter[str], late: bool
) -> None:
    here, there = "a" * 32, "b" * 32
    ways = [[], [here], [here, there], [there], [here], [], [here, there], [there]]
    queue = make_queue()
    text = f"AMQBrokerPath IS NULL OR AMQBrokerPath NOT LIKE '%{there}%' AND AMQBrokerHops < 2"
    if late:
        join(queue, number=2, window=1, filter="AMQBrokerHops > 5")
    else:
        join(queue, filter=text)
    for part in (ways, ways[:1] * 8, ways[1:2] * 8, ways[2:3] * 8):
        queue.append(QueueRun(on_ways(part), queue.number_rows(len(part))))
    if late:
        assert dealt(queue) == {2: []}
        join(queue, filter=text)
    looks.clear()
    assert dealt(queue)[1] == [1, 2, 5, 6, *range(9, 25)]
    # Four ways in the first run, and one in each of the others.
    assert looks["moved"] == 7


def test_a_filter_that_asks_for_more_than_the_path_looks_at_each_message(looks: Counter[str]) -> None:
    queue = make_queue()
    join(queue, filter="AMQBrokerPath IS NULL AND p = 'b'")
    put(queue, values=[{"p": "b"}, {"p": "a"}, {"p": "b"}])
    assert dealt(queue) == {1: [1, 3]} and looks["moved"] == 3
