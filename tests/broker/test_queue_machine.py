"""One queue: who gets what, in which order, and what comes back."""

from __future__ import annotations

import pytest

from meshq.broker.queue._consumer_state import RowSpan, fitting, span_bytes
from meshq.broker.queue._message_counts import skip_rows
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._run import QueueRun
from meshq.errors import InvariantError
from tests.broker.queues import Nowhere, dealt, give_back, join, leave, make_queue, make_run, numbers, put, settle

# -- dealing


def test_a_run_is_dealt_evenly_and_by_stride_among_equal_consumers() -> None:
    queue = make_queue()
    put(queue, 10)
    join(queue, number=1)
    join(queue, number=2)
    assert dealt(queue) == {1: [1, 3, 5, 7, 9], 2: [2, 4, 6, 8, 10]}


def test_a_paused_queue_grants_nothing_and_goes_on_where_it_stopped() -> None:
    queue = make_queue()
    put(queue, 4)
    join(queue, 2, number=1)
    assert dealt(queue) == {1: [1, 2]}
    queue.paused = True
    join(queue, number=2)
    join(queue, number=3, filter="size = 10")
    assert dealt(queue) == {1: [], 2: [], 3: []} and not queue.pending.unfinished
    queue.paused = False
    assert dealt(queue) == {1: [], 2: [], 3: [3, 4]}


def test_the_rotation_goes_on_across_runs_of_one_message() -> None:
    queue = make_queue()
    for number in (1, 2, 3):
        join(queue, number=number)
    got: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for _ in range(7):
        put(queue, 1)
        for number, messages in dealt(queue).items():
            got[number] += messages
    assert got == {1: [1, 4, 7], 2: [2, 5], 3: [3, 6]}


def test_the_rotation_goes_on_after_a_run_that_does_not_come_out_even() -> None:
    queue = make_queue()
    join(queue, number=1)
    join(queue, number=2)
    put(queue, 3)
    put(queue, 2)
    assert dealt(queue) == {1: [1, 3, 5], 2: [2, 4]}


def test_a_consumer_that_leaves_takes_nobody_elses_turn() -> None:
    queue = make_queue()
    first, second, third = (join(queue, number=number) for number in (1, 2, 3))
    put(queue, 2)
    assert dealt(queue) == {1: [1], 2: [2], 3: []}
    settle(first, 1, 1)
    leave(first)
    put(queue, 1)
    assert dealt(queue) == {2: [], 3: [3]}
    leave(third)
    leave(second)
    queue.check()
    assert (queue.counts.ready, queue.counts.unacked, queue.roster.consumers) == (2, 0, [])


def test_a_consumer_with_a_smaller_window_gets_its_share_and_the_other_one_the_rest() -> None:
    queue = make_queue()
    put(queue, 10)
    join(queue, 2, number=1)
    join(queue, 100, number=2)
    assert dealt(queue) == {1: [1, 3], 2: [2, 4, 5, 6, 7, 8, 9, 10]}


def test_nobody_gets_anything_while_no_consumer_is_willing() -> None:
    queue = make_queue()
    put(queue, 3)
    consumer = join(queue)
    consumer.set_willing(False)
    assert dealt(queue) == {1: []}
    consumer.set_willing(True)
    assert dealt(queue) == {1: [1, 2, 3]}


def test_a_step_is_bounded_by_its_budget() -> None:
    queue = make_queue()
    for _ in range(10):
        put(queue, 4)
    join(queue)
    assert sum(dispatch.rows for _, dispatch in queue.dispatch(budget=9)) == 12
    assert queue.counts.ready == 28


# -- windows


def test_a_window_bounds_what_is_held_and_a_settle_opens_it_again() -> None:
    queue = make_queue()
    put(queue, 10)
    consumer = join(queue, 4)
    assert dealt(queue) == {1: [1, 2, 3, 4]}
    assert settle(consumer, 2, 3) == [2, 3]
    assert dealt(queue) == {1: [5, 6]}
    assert (consumer.unacked, queue.counts.unacked, queue.counts.ready) == (4, 4, 4)


def test_a_window_in_bytes_bounds_what_is_held() -> None:
    queue = make_queue()
    put(queue, 10, size=100)
    consumer = join(queue, 1_000, 350)
    assert dealt(queue) == {1: [1, 2, 3]}
    settle(consumer, 1, 3)
    assert dealt(queue) == {1: [4, 5, 6]}


def test_one_message_always_fits_into_a_window() -> None:
    queue = make_queue()
    put(queue, sizes=[500, 500, 10])
    consumer = join(queue, 1_000, 100)
    assert dealt(queue) == {1: [1]}
    settle(consumer, 1, 1)
    assert dealt(queue) == {1: [2]}
    settle(consumer, 2, 2)
    assert dealt(queue) == {1: [3]}


def test_a_large_message_waits_for_a_consumer_that_holds_nothing() -> None:
    queue = make_queue()
    put(queue, sizes=[50, 500])
    consumer = join(queue, 1_000, 100)
    assert dealt(queue) == {1: [1]}
    settle(consumer, 1, 1)
    assert dealt(queue) == {1: [2]}


def test_a_message_too_large_for_one_consumers_room_goes_to_another_one_that_has_it() -> None:
    queue = make_queue()
    join(queue, 1_000, 100, number=1)
    join(queue, 1_000, 10_000, number=2)
    put(queue, sizes=[60, 60])
    assert dealt(queue) == {1: [1], 2: [2]}
    put(queue, sizes=[500])
    assert dealt(queue) == {1: [], 2: [3]}


def test_room_in_bytes_comes_back_message_by_message_not_grant_by_grant() -> None:
    queue = make_queue()
    put(queue, 4, size=100)
    consumer = join(queue, 1_000, 400)
    assert dealt(queue) == {1: [1, 2, 3, 4]}
    settle(consumer, 2, 4)
    assert consumer.unacked_bytes == 100
    put(queue, 4, size=100)
    # Message 1 is still held: whoever has it may be waiting for these.
    assert dealt(queue) == {1: [5, 6, 7]}
    settle(consumer, 1, 1)
    settle(consumer, 5, 7)
    assert (consumer.unacked, consumer.unacked_bytes) == (0, 0)


def test_messages_dealt_by_stride_count_what_they_weigh() -> None:
    queue = make_queue()
    one, two = join(queue, 100, 1_000, number=1), join(queue, 100, 1_000, number=2)
    put(queue, sizes=[200, 1, 200, 1])
    assert dealt(queue) == {1: [1, 3], 2: [2, 4]}
    assert (one.unacked_bytes, two.unacked_bytes) == (400, 2)
    settle(one, 1, 1)
    settle(two, 1, 2)
    assert (one.unacked_bytes, two.unacked_bytes) == (200, 0)


def test_the_rows_that_fit_are_counted_from_the_table() -> None:
    view = QueueRun(make_run([10, 20, 30, 40]), 1)
    assert [fitting(view, 0, 4, room) for room in (9, 10, 29, 30, 59, 60, 99, 100)] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert fitting(view, 2, 4, 30) == 1
    assert span_bytes(view, 1, 3) == 50
    assert [span_bytes(view, 0, 4, step) for step in (2, 3, 4, 5)] == [40, 50, 10, 10]
    assert [span_bytes(view, 1, 4, step) for step in (2, 3)] == [60, 20]


# -- marks


def test_durable_messages_beyond_the_mark_wait_and_the_queue_says_how_far_it_would_go() -> None:
    queue = make_queue(mark=0)
    put(queue, 5)
    join(queue)
    assert dealt(queue) == {1: []}
    assert queue.lists.all[0].wanted_watermark == 5
    queue.lists.high_watermark = 3
    assert dealt(queue) == {1: [1, 2, 3]}
    assert queue.lists.all[0].wanted_watermark == 5
    queue.lists.high_watermark = 10
    put(queue, 6)
    assert dealt(queue) == {1: [4, 5, 6, 7, 8, 9, 10]}
    assert queue.lists.all[0].wanted_watermark == 11


def test_a_message_that_is_not_durable_needs_no_mark_but_does_not_overtake() -> None:
    queue = make_queue(mark=0)
    put(queue, 2, durable=False)
    put(queue, 1)
    put(queue, 1, durable=False)
    join(queue)
    assert dealt(queue) == {1: [1, 2]}
    queue.lists.high_watermark = 3
    assert dealt(queue) == {1: [3, 4]}


def test_what_comes_back_needs_no_mark() -> None:
    queue = make_queue(mark=2)
    put(queue, 4)
    consumer = join(queue)
    assert dealt(queue) == {1: [1, 2]}
    give_back(consumer, 1, 2)
    assert dealt(queue) == {1: [1, 2]}


# -- what comes back


def test_what_comes_back_returns_to_its_place() -> None:
    queue = make_queue()
    put(queue, 3)
    put(queue, 3)
    put(queue, 3)
    consumer = join(queue, 5)
    assert dealt(queue) == {1: [1, 2, 3, 4, 5]}
    assert give_back(consumer, 5, 5) == [5]
    assert give_back(consumer, 2, 2) == [2]
    assert settle(consumer, 1, 1) == [1]
    assert dealt(queue) == {1: [2, 5, 6]}


def test_a_consumer_that_leaves_gives_back_in_order() -> None:
    queue = make_queue()
    put(queue, 10)
    first = join(queue, 6, number=1)
    join(queue, 2, number=2)
    assert dealt(queue) == {1: [1, 3, 5, 6, 7, 8], 2: [2, 4]}
    settle(first, 3, 3)
    leave(first)
    join(queue, number=3)
    assert dealt(queue) == {2: [], 3: [1, 3, 6, 7, 8, 9, 10]}


def test_only_what_may_have_reached_an_application_counts_as_delivered() -> None:
    queue = make_queue()
    view = put(queue, 4)
    consumer = join(queue)
    dealt(queue)
    give_back(consumer, 1, 2, counted=True)
    give_back(consumer, 3, 4, counted=False)
    assert [view.deliveries(row) for row in range(4)] == [1, 1, 0, 0]
    assert queue.counts.redelivered == 2
    dealt(queue)
    give_back(consumer, 5, 5)
    assert view.deliveries(0) == 2


def test_what_an_earlier_life_may_have_delivered_counts_once() -> None:
    view = QueueRun(make_run([1, 1]), 1)
    view.maybe = 1
    assert [view.deliveries(0), view.deliveries(1)] == [1, 0]
    view.counts = {0: (2, 1)}
    # What is counted says it all.
    assert [view.deliveries(0), view.deliveries(1)] == [2, 0]
    view.counts = None
    view.count_return(0)
    assert (view.deliveries(0), view.returns(0)) == (2, 1), "of the life before nothing is sure"


def test_what_came_back_goes_before_a_run_that_nobody_has_seen() -> None:
    queue = make_queue()
    put(queue, 2)
    put(queue, 2)
    consumer = join(queue, window=2)
    assert dealt(queue) == {1: [1, 2]}
    give_back(consumer, 1, 2)
    assert dealt(queue) == {1: [1, 2]}


def test_rows_of_a_new_run_that_are_gone_are_not_granted() -> None:
    queue = make_queue()
    view = QueueRun(make_run([1, 1, 1]), queue.number_rows(3))
    skip_rows(view, (1,))
    queue.append(view)
    join(queue)
    assert dealt(queue) == {1: [1, 3]}


# -- purging


def test_a_purge_takes_what_is_ready_oldest_first_and_leaves_what_is_held() -> None:
    queue = make_queue()
    put(queue, 3)
    put(queue, 3)
    consumer = join(queue, 4)
    dealt(queue)
    give_back(consumer, 2, 2)
    spans, ended = queue.purge(100)
    assert [numbers(span) for span in spans] == [[2], [5, 6]]
    assert ended == [False, False]
    queue.check()
    assert (queue.counts.ready, queue.counts.unacked, queue.counts.removed["purged"]) == (0, 3, 3)
    settle(consumer, 1, 1)
    settle(consumer, 3, 4)
    assert queue.lists.live_runs == 0
    assert dealt(queue) == {1: []}


def test_a_purge_names_the_end_of_a_run_once_though_it_goes_in_parts() -> None:
    queue = make_queue()
    put(queue, 4)
    consumer = join(queue)
    dealt(queue)
    settle(consumer, 3, 3)
    give_back(consumer, 1, 2)
    give_back(consumer, 4, 4)
    spans, ended = queue.purge(100)
    assert ([numbers(span) for span in spans], ended) == ([[1, 2], [4]], [False, True])


def test_a_purge_is_bounded_by_its_budget() -> None:
    queue = make_queue()
    for _ in range(5):
        put(queue, 4)
    spans, ended = queue.purge(9)
    assert [numbers(span)[0] for span in spans] == [1, 5, 9]
    assert ended == [True, True, True]
    assert queue.counts.ready == 8


def test_numbers_go_on_after_everything_is_gone() -> None:
    queue = make_queue()
    put(queue, 3)
    queue.purge(100)
    assert put(queue, 1).first == 4
    join(queue)
    assert dealt(queue) == {1: [4]}


# -- what may have been delivered


def test_nothing_above_the_number_granted_was_ever_granted() -> None:
    queue = make_queue()
    assert queue.delivered_up_to == {4: 0}
    put(queue, 3)
    put(queue, 3)
    assert queue.delivered_up_to == {4: 0}
    consumer = join(queue, 2)
    dealt(queue)
    assert queue.delivered_up_to == {4: 2}
    settle(consumer, 1, 2)
    dealt(queue)
    assert queue.delivered_up_to == {4: 4}
    give_back(consumer, 4, 4)
    assert queue.delivered_up_to == {4: 4}
    settle(consumer, 3, 3)
    dealt(queue)
    settle(consumer, 5, 5)
    dealt(queue)
    settle(consumer, 6, 6)
    dealt(queue)
    settle(consumer, 7, 7)
    assert (queue.delivered_up_to, queue.counts.ready, queue.counts.unacked) == ({4: 6}, 0, 0)


def test_what_an_earlier_life_may_have_delivered_counts_as_granted() -> None:
    queue = make_queue()
    first, second, third = put(queue, 3), put(queue, 3), put(queue, 3)
    first.maybe, second.maybe, third.maybe = 3, 1, 0
    assert queue.delivered_up_to == {4: 4}
    consumer = join(queue, 2)
    dealt(queue)
    assert queue.delivered_up_to == {4: 4}
    settle(consumer, 1, 2)
    dealt(queue)
    settle(consumer, 3, 4)
    dealt(queue)
    assert queue.delivered_up_to == {4: 6}


# -- its own promises


def test_runs_become_visible_in_the_order_of_their_numbers_only() -> None:
    queue = make_queue()
    first = QueueRun(make_run([1]), queue.number_rows(1))
    put(queue, 1)
    with pytest.raises(InvariantError, match="placing order"):
        queue.append(first)


def test_a_consumer_that_holds_something_cannot_just_leave() -> None:
    queue = make_queue()
    put(queue, 1)
    consumer = join(queue)
    dealt(queue)
    with pytest.raises(InvariantError, match="holds nothing"):
        queue.remove_consumer(consumer)


def test_a_queue_that_is_not_what_its_counts_say_is_found_out() -> None:
    def broken_by(breaker: str) -> str:
        queue = make_queue()
        view = put(queue, 3)
        join(queue, 2)
        dealt(queue)
        queue.check()
        exec_break[breaker](queue, view)
        with pytest.raises(InvariantError) as caught:
            queue.check()
        return str(caught.value)

    def more_ready(queue: Queue, view: QueueRun) -> None:
        queue.lists.all[0].ready += 1

    def less_live(queue: Queue, view: QueueRun) -> None:
        view.live -= 1

    def ready_and_forgotten(queue: Queue, view: QueueRun) -> None:
        view.states[0] = 0
        queue.lists.all[0].ready += 1
        queue.counts.ready += 1
        queue.counts.unacked -= 1

    def held_by_nobody(queue: Queue, view: QueueRun) -> None:
        queue.roster.consumers[0].unacked -= 1

    def lost(queue: Queue, view: QueueRun) -> None:
        queue.counts.added += 1

    exec_break = {
        "ready": more_ready,
        "live": less_live,
        "forgotten": ready_and_forgotten,
        "holder": held_by_nobody,
        "lost": lost,
    }
    assert "what the states say" in broken_by("ready")
    assert "live count" in broken_by("live")
    assert "found through the heap" in broken_by("forgotten")
    assert "has a consumer or a transaction" in broken_by("holder")
    assert "added =" in broken_by("lost")


def test_room_is_never_negative_for_a_consumer_over_its_bytes() -> None:
    queue = make_queue()
    consumer = QueueConsumer(queue, Nowhere(), 1, 10, 5)
    consumer.unacked, consumer.unacked_bytes = 1, 50
    assert consumer.credit() == 0


# -- what only a part of the history of a queue comes upon


def test_a_message_of_a_group_that_is_delayed_holds_up_no_other_and_comes_after_its_delay() -> None:
    queue = make_queue()
    view = put(queue, groups=["a", "a", "b"])
    consumer = join(queue, 1)
    assert dealt(queue) == {1: [1]}
    second = RowSpan(view, 1, 2, 1)
    queue.delay(second)
    settle(consumer, 1, 1)
    assert dealt(queue) == {1: [3]}
    settle(consumer, 2, 2)
    assert dealt(queue) == {1: []}
    queue.wake(second)
    assert dealt(queue) == {1: [2]}


def test_a_queue_of_last_values_grants_nothing_while_a_run_has_not_been_looked_at() -> None:
    queue = make_queue()
    put(queue, values=[{"key": 1}, {"key": 2}])
    newer = put(queue, values=[{"key": 1}])
    content = newer.run.content
    newer.run.forget()
    queue.keep_last_values("key")
    join(queue)
    assert dealt(queue) == {1: []}
    newer.run.restore(content)
    queue.content_loaded(newer)
    assert dealt(queue) == {1: [2, 3]}
