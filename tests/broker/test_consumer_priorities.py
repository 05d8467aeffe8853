"""Consumers with priorities, and exclusive ones: who of a queue's consumers is served at all."""

from __future__ import annotations

import random

import pytest

from meshq import AddressSettings
from meshq.broker.queue._queue_machine import Queue
from tests.broker.kit import make_house
from tests.broker.logs import FakeLog
from tests.broker.queues import dealt, give_back, join, leave, make_queue, put, settle


def keys(*values: int) -> list[dict[str, int] | None]:
    return [{"k": value} for value in values]


def test_the_highest_priority_gets_everything_until_it_is_full_then_the_next() -> None:
    queue = make_queue()
    low = join(queue, 3, number=1, priority=-5)
    high = join(queue, 4, number=2)
    put(queue, 10)
    assert dealt(queue) == {1: [5, 6, 7], 2: [1, 2, 3, 4]}
    settle(low, 1, 1)
    settle(high, 1, 1)
    assert dealt(queue) == {1: [9], 2: [8]}


def test_equals_of_the_highest_priority_are_served_in_turn() -> None:
    queue = make_queue()
    for number, priority in ((1, 7), (2, 0), (3, 7)):
        join(queue, 3, number=number, priority=priority)
    put(queue, 4)
    assert dealt(queue) == {1: [1, 3], 2: [], 3: [2, 4]}
    put(queue, 5)
    assert dealt(queue) == {1: [5], 2: [7, 8, 9], 3: [6]}


def test_priority_goes_before_choice_and_choice_goes_first_among_equals() -> None:
    queue = make_queue()
    join(queue, 2, number=1, priority=1)
    join(queue, number=2, filter="k = 1")
    join(queue, number=3)
    put(queue, values=keys(1, 1, 1, 2, 1, 2))
    assert dealt(queue) == {1: [1, 2], 2: [3, 5], 3: [4, 6]}


def test_one_filter_may_have_consumers_of_several_priorities_and_what_comes_back_is_found() -> None:
    queue = make_queue()
    low = join(queue, number=1, filter="k = 1")
    high = join(queue, 2, number=2, filter="k = 1", priority=3)
    put(queue, values=keys(1, 2, 1, 1, 1))
    assert dealt(queue) == {1: [4, 5], 2: [1, 3]}
    give_back(high, 1, 1)
    give_back(low, 1, 1)
    assert dealt(queue) == {1: [4], 2: [1]}
    leave(high)
    assert dealt(queue) == {1: [1, 3]}
    settle(low, 2, 5)
    queue.check()
    assert queue.lists.live_runs == 1 and queue.counts.ready == 1


def test_who_joins_with_a_higher_priority_goes_first_from_then_on() -> None:
    queue = make_queue()
    join(queue, 2, number=1)
    put(queue, 2)
    dealt(queue)
    high = join(queue, 1, number=2, priority=1)
    put(queue, 2)
    assert dealt(queue) == {1: [], 2: [3]}
    settle(high, 1, 1)
    assert dealt(queue) == {1: [], 2: [4]}


def test_urgent_messages_go_to_the_high_ones_and_to_the_low_ones_only_what_they_have_no_room_for() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    client.put(sender, b"a", b"b", b"c")
    low = client.consume(window=5, rank=128 - 5)
    assert client.bodies(low) == [b"a", b"b", b"c"]
    high = client.consume(window=1)
    client.put(sender, b"d", b"e")
    assert client.bodies(high) == [b"d"] and client.bodies(low)[3:] == [b"e"]
    house.check()


class Model:
    """Messages in order, and consumers by priority: what each gets is worked out message by message."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.queue: Queue = make_queue()
        self.ready: list[int] = []
        self.held: dict[int, dict[int, int]] = {}
        self.states: dict[int, tuple[int, int]] = {}
        self.consumers = {}
        self.made = 0

    def join(self) -> None:
        self.made += 1
        priority, window = self.dice.choice([-5, 0, 0, 3]), self.dice.choice([1, 2, 5])
        self.consumers[self.made] = join(self.queue, window, number=self.made, priority=priority)
        self.states[self.made] = priority, window
        self.held[self.made] = {}

    def room(self, number: int) -> int:
        return self.states[number][1] - len(self.held[number])

    def dispatch(self) -> None:
        expected: dict[int, int] = dict.fromkeys((priority for priority, _ in self.states.values()), 0)
        left = len(self.ready)
        for rank in sorted(expected, reverse=True):
            room = sum(self.room(number) for number, (priority, _) in self.states.items() if priority == rank)
            expected[rank] = min(room, left)
            left -= expected[rank]
        found = dealt(self.queue)
        given = sorted(number for numbers in found.values() for number in numbers)
        assert given == self.ready[: len(given)] and len(given) == sum(expected.values())
        for rank, count in sorted(expected.items(), reverse=True):
            numbers = [name for name, (priority, _) in self.states.items() if priority == rank]
            assert sum(len(found[name]) for name in numbers) == count
            # The higher ones get the front.
            mine = sorted(number for name in numbers for number in found[name])
            assert mine == given[:count]
            given = given[count:]
        for name, numbers in found.items():
            for number in numbers:
                self.held[name][self.consumers[name].next_tag - len(numbers) + numbers.index(number)] = number
        self.ready = self.ready[len(self.ready) - left :] if left else []

    def finish(self) -> None:
        holders = [name for name, held in self.held.items() if held]
        if holders:
            name = self.dice.choice(holders)
            tag = self.dice.choice(list(self.held[name]))
            number = self.held[name].pop(tag)
            if self.dice.random() < 0.7:
                assert settle(self.consumers[name], tag, tag) == [number]
            else:
                assert give_back(self.consumers[name], tag, tag) == [number]
                self.ready = sorted([*self.ready, number])

    def leave(self) -> None:
        if len(self.consumers) > 1:
            name = self.dice.choice(list(self.consumers))
            self.ready = sorted([*self.ready, *self.held.pop(name).values()])
            leave(self.consumers.pop(name))
            del self.states[name]

    def put(self) -> None:
        view = put(self.queue, self.dice.choice([1, 3, 9]))
        self.ready += range(view.first, view.first + len(view.states))


@pytest.mark.parametrize("seed", range(8))
def test_any_history_gives_the_front_to_the_highest_with_room(seed: int) -> None:
    model = Model(random.Random(seed))
    model.join()
    for _ in range(300):
        step = model.dice.choices([model.put, model.finish, model.join, model.leave], [3, 6, 0.6, 0.6])[0]
        if step != model.join or len(model.consumers) < 6:
            step()
        model.dispatch()


# -- exclusive consumers


def test_the_first_exclusive_consumer_alone_is_served_and_then_the_next() -> None:
    queue = make_queue()
    first = join(queue, number=1, exclusive=True)
    second = join(queue, number=2, exclusive=True)
    join(queue, number=3)
    put(queue, 4)
    assert dealt(queue) == {1: [1, 2, 3, 4], 2: [], 3: []}
    settle(first, 1, 1)
    leave(first)
    put(queue, 1)
    assert dealt(queue) == {2: [2, 3, 4, 5], 3: []}
    leave(second)
    assert dealt(queue) == {3: [2, 3, 4, 5]}


def test_an_exclusive_consumer_begins_when_nobody_else_holds_anything() -> None:
    queue = make_queue()
    plain = join(queue, 2, number=1)
    put(queue, 4)
    assert dealt(queue) == {1: [1, 2]}
    join(queue, number=2, exclusive=True)
    assert dealt(queue) == {1: [], 2: []}
    settle(plain, 1, 1)
    assert dealt(queue) == {1: [], 2: []}
    give_back(plain, 2, 2)
    assert dealt(queue) == {1: [], 2: [2, 3, 4]}


def test_a_higher_priority_takes_over_once_what_was_held_is_settled() -> None:
    queue = make_queue()
    first = join(queue, 1, number=1, exclusive=True)
    join(queue, number=2, exclusive=True)
    put(queue, 3)
    assert dealt(queue) == {1: [1], 2: []}
    join(queue, number=3, exclusive=True, priority=1)
    assert dealt(queue) == {1: [], 2: [], 3: []}
    settle(first, 1, 1)
    assert dealt(queue) == {1: [], 2: [], 3: [2, 3]}


def test_a_standby_that_leaves_changes_nothing_and_filters_stand_by_too() -> None:
    queue = make_queue()
    plain = join(queue, number=1)
    first = join(queue, number=2, exclusive=True, filter="k = 1")
    standby = join(queue, number=3, exclusive=True, filter="k = 1")
    put(queue, values=keys(1, 2, 1))
    assert dealt(queue) == {1: [], 2: [1, 3], 3: []}
    assert [filter.text for filter in queue.roster.filters] == ["k = 1"]
    leave(standby)
    leave(first)
    assert dealt(queue) == {1: [1, 2, 3]}
    assert queue.roster.filters == ()
    settle(plain, 1, 3)
    assert queue.lists.live_runs == 0


def test_all_consumers_of_a_queue_may_be_exclusive_by_its_settings_also_after_a_restart() -> None:
    settings = {"q": AddressSettings(default_exclusive=True)}
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    client.put(client.produce(), b"a", b"b")
    first, second = client.consume(window=1), client.consume()
    house.rest()
    assert client.bodies(first) == [b"a"] and client.bodies(second) == []
    client.leave(first)
    house.rest()
    assert client.bodies(second) == [b"a", b"b"]
    house.check()
    log = house.log.after_crash()
    house = make_house(log, records=log.recovered(), settings=settings)
    client = house.client()
    first, second = client.consume(window=1), client.consume()
    house.rest()
    assert client.bodies(first) == [b"a"] and client.bodies(second) == []


@pytest.mark.parametrize("seed", range(6))
def test_two_never_hold_messages_at_once_while_an_exclusive_consumer_is_there(seed: int) -> None:
    dice = random.Random(seed)
    queue = make_queue()
    there = []
    served = 0
    for number in range(1, 400):
        if dice.random() < 0.3 and len(there) < 5:
            exclusive = dice.random() < 0.7
            there.append(join(queue, 2, number=number, exclusive=exclusive, priority=dice.choice([0, 0, 1])))
        if dice.random() < 0.2 and there:
            gone = there.pop(dice.randrange(len(there)))
            leave(gone)
        put(queue, 1)
        found = dealt(queue)
        if any(consumer.exclusive for consumer in there):
            best = max((c for c in there if c.exclusive), key=lambda consumer: consumer.priority)
            got = [name for name, numbers in found.items() if numbers]
            assert got in ([], [best.number])
            if got:
                served += 1
                assert all(not consumer.unacked for consumer in there if consumer is not best)
        for consumer in there:
            if consumer.unacked and dice.random() < 0.5:
                tag = consumer.dispatches[0].tag + consumer.dispatches[0].rows - consumer.dispatches[0].left
                settle(consumer, tag, tag)
    assert served > 60


def test_an_exclusive_consumer_leaves_room_to_nobody_over_a_session() -> None:
    house = make_house()
    client, other = house.client(), house.client()
    sender = client.produce()
    plain = other.consume()
    client.consume(window=1, exclusive=True)
    client.put(sender, b"a", b"b")
    assert other.bodies(plain) == []
    # Its session ends, and what it held goes on to who is left.
    house.sessions.by_number[1].end()
    house.core.pending.run()
    assert other.bodies(plain) == [b"a", b"b"]
    house.check()


def test_a_rank_that_is_none_breaks_the_protocol() -> None:
    house = make_house()
    client = house.client()
    client.consume(rank=256)
    assert client.closed
