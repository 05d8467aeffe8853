"""The decision when the messages of a queue move: states of queues go in, with the time; the queues that are due come
out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import trio
import trio.testing

from meshq.abc import StrandedMessages, StrandedQueue
from meshq.cluster._redistribution_plan import PAUSE_S, REST, STEP, RedistributionPlan
from meshq.cluster._redistributor import Redistributor


def state(messages: int = 1, delay: float = 5.0, filters: str = "", demand: str = "") -> StrandedQueue:
    return StrandedQueue(address="q", messages=messages, delay=delay, filters=frozenset(filters), demand=demand)


def test_a_queue_is_due_when_the_delay_is_over_and_not_before() -> None:
    plan = RedistributionPlan()
    assert plan.next_s(0.0) == math.inf
    assert plan.see("q", state(), 10.0)
    assert plan.due(14.999) == [] and plan.next_s(11.0) == 4.0
    assert plan.due(15.0) == ["q"] and plan.next_s(16.0) == 0.0


def test_a_queue_without_a_delay_is_due_at_once() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 10.0)
    assert plan.due(10.0) == ["q"]


def test_the_same_state_seen_again_moves_no_moment() -> None:
    plan = RedistributionPlan()
    assert plan.see("q", state(), 10.0)
    assert not plan.see("q", state(messages=7), 13.0)
    assert plan.due(15.0) == ["q"]


def test_a_consumer_that_comes_and_goes_begins_the_whole_delay_anew() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(), 10.0)
    assert not plan.see("q", None, 12.0)
    assert plan.next_s(12.0) == math.inf
    plan.see("q", state(), 13.0)
    assert plan.due(17.0) == [] and plan.due(18.0) == ["q"]


@pytest.mark.parametrize("delay", [0.5, 60.0])
def test_another_delay_begins_anew(delay: float) -> None:
    plan = RedistributionPlan()
    plan.see("q", state(), 10.0)
    plan.see("q", state(delay=delay), 14.0)
    assert plan.next_s(14.0) == delay


def test_a_filter_that_goes_begins_anew_and_one_that_comes_changes_nothing() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(filters="a"), 10.0)
    assert not plan.see("q", state(filters="ab"), 12.0)
    assert plan.next_s(12.0) == 3.0
    assert plan.see("q", state(filters="b"), 13.0)
    assert plan.next_s(13.0) == 5.0
    # The one that is left goes, too.
    plan.see("q", state(), 14.0)
    assert plan.due(18.0) == [] and plan.due(19.0) == ["q"]


def test_the_delay_runs_while_a_queue_is_empty() -> None:
    plan = RedistributionPlan()
    assert not plan.see("q", state(messages=0), 10.0)
    assert plan.due(20.0) == []
    assert plan.see("q", state(), 20.0)
    assert plan.due(20.0) == ["q"]


def test_a_full_move_is_followed_by_another_and_a_part_of_one_is_not() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    assert plan.due(0.0) == []
    plan.moved("q", STEP, 0.0)
    assert plan.due(0.0) == ["q"]
    plan.begins("q", 0.0)
    plan.moved("q", STEP - 1, 0.0)
    assert plan.next_s(0.0) == math.inf


def test_a_state_seen_during_a_move_is_not_forgotten_when_the_move_ends() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    assert plan.see("q", state(delay=0.0), 0.0)
    plan.moved("q", 0, 0.0)
    assert plan.due(0.0) == ["q"]


def test_a_move_that_failed_is_tried_again_after_a_pause_also_if_its_queue_is_seen_before() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    plan.failed("q", 1.0)
    plan.see("q", state(delay=0.0), 1.0)
    assert plan.due(1.0) == [] and plan.next_s(1.0) == PAUSE_S
    assert plan.due(1.0 + PAUSE_S) == ["q"]


def test_a_look_that_took_long_and_found_nothing_is_followed_by_a_rest_that_another_demand_ends() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    plan.moved("q", 0, 2.0)
    assert plan.see("q", state(2, 0.0), 3.0)
    assert plan.due(3.0) == [] and plan.next_s(3.0) == 2.0 + REST * 2.0 - 3.0
    assert not plan.see("q", state(3, 0.0), 4.0)
    assert plan.see("q", state(3, 0.0, demand="more"), 4.0)
    assert plan.due(4.0) == ["q"]


@pytest.mark.parametrize("seen", [None, state(delay=0.0, demand="more"), state(delay=1.0)])
def test_after_a_look_during_which_demand_changed_or_the_queue_began_anew_there_is_no_rest(
    seen: StrandedQueue | None,
) -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    plan.see("q", seen, 1.0)
    plan.see("q", state(delay=0.0) if seen is None else seen, 1.0)
    plan.moved("q", 0, 2.0)
    assert plan.due(2.0) == ["q"]


def test_what_finds_messages_needs_no_rest() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(delay=0.0), 0.0)
    plan.begins("q", 0.0)
    plan.moved("q", 1, 60.0)
    plan.see("q", state(delay=0.0), 60.0)
    assert plan.due(60.0) == ["q"]


def test_a_queue_that_got_a_consumer_during_its_move_is_forgotten() -> None:
    for end in (lambda plan: plan.moved("q", STEP, 0.0), lambda plan: plan.failed("q", 0.0)):
        plan = RedistributionPlan()
        plan.see("q", state(delay=0.0), 0.0)
        plan.begins("q", 0.0)
        plan.see("q", None, 0.0)
        end(plan)
        assert plan.next_s(0.0) == math.inf


def test_queues_that_are_due_take_turns() -> None:
    plan = RedistributionPlan()
    for name in "abc":
        plan.see(name, state(delay=0.0), 0.0)
    turns = []
    for _ in range(6):
        name = plan.due(0.0)[0]
        turns.append(name)
        plan.begins(name, 0.0)
        plan.moved(name, STEP, 0.0)
    assert turns == [*"abcabc"]


def test_no_order_in_which_states_are_seen_leaves_a_message_behind() -> None:
    # A queue with 3 moves of messages; between the parts of each move its state may be seen or not.
    for seen in itertools.product([False, True], repeat=4):
        plan, left = RedistributionPlan(), 2 * STEP + 1
        plan.see("q", state(left, 0.0), 0.0)
        looks = iter(itertools.cycle(seen))
        for _ in range(20):
            if not plan.due(0.0):
                break
            plan.begins("q", 0.0)
            if next(looks):
                plan.see("q", state(left, 0.0), 0.0)
            messages = min(left, STEP)
            left -= messages
            plan.moved("q", messages, 0.0)
            if next(looks):
                plan.see("q", state(left, 0.0), 0.0)
        assert left == 0 and plan.due(0.0) == [], seen


def test_one_queue_is_due_exactly_when_it_is_among_those_that_are() -> None:
    plan = RedistributionPlan()
    plan.see("q", state(), 10.0)
    plan.see("empty", state(messages=0), 10.0)
    for name, now in itertools.product(("q", "empty", "unknown"), (14.0, 15.0, 16.0)):
        assert plan.is_due(name, now) == (name in plan.due(now))


class ManyQueues(StrandedMessages):
    """Queues with one message each, all of which wait for consumers elsewhere."""

    def __init__(self, count: int) -> None:
        self.names = [f"q{number}" for number in range(count)]
        self.moves: list[str] = []

    def watch(self, watcher: Callable[[str], None]) -> None:
        for name in self.names:
            watcher(name)

    def stranded(self, queue: str) -> StrandedQueue | None:
        return state(delay=0.0)

    async def move(self, queue: str, limit: int) -> int:
        await trio.lowlevel.checkpoint()
        self.moves.append(queue)
        return 1


async def test_many_queues_that_are_due_together_are_not_all_looked_at_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []
    due = RedistributionPlan.due

    def look(plan: RedistributionPlan, now: float) -> list[str]:
        looks.append(now)
        return due(plan, now)

    monkeypatch.setattr(RedistributionPlan, "due", look)
    queues = ManyQueues(100)
    redistributor = Redistributor(queues, lambda address: True, lambda *said: None)
    async with trio.open_nursery() as nursery:
        redistributor.begin(nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert queues.moves == queues.names
    assert len(looks) < 5


class Unwanted(StrandedMessages):
    """A queue of which nobody elsewhere wants anything, and which it takes two seconds to look through."""

    def __init__(self) -> None:
        self.looks: list[float] = []
        self.tell: Callable[[str], None] = lambda queue: None

    def watch(self, watcher: Callable[[str], None]) -> None:
        self.tell = watcher

    def stranded(self, queue: str) -> StrandedQueue | None:
        return state(delay=0.0)

    async def move(self, queue: str, limit: int) -> int:
        self.looks.append(trio.current_time())
        await trio.sleep(2)
        return 0


async def test_a_queue_of_which_nobody_wants_anything_is_not_looked_through_for_each_message_that_comes() -> None:
    queue = Unwanted()
    redistributor = Redistributor(queue, lambda address: True, lambda *said: None)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        redistributor.begin(nursery)
        for _ in range(55):
            queue.tell("q")
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [round(look - began) for look in queue.looks] == [0, 20, 40]
