"""The line between placing and release, and the marks that stand in it."""

from __future__ import annotations

import math

import pytest

from meshq import limits
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import WATERMARK_BLOCK, Queue
from meshq.broker.records import DEFINITION, MARKS, decode_marks
from meshq.errors import AddressFullError
from tests.broker.logs import FakeLog


def make_ledger(log: FakeLog | None) -> tuple[ReleaseQueue, list[object]]:
    """A ledger, and what it releases in order."""
    released: list[object] = []
    release_queue = ReleaseQueue(log, released.append)
    if log is not None:
        log.on_durable = release_queue.durable_moved
    return release_queue, released


def marked(log: FakeLog, *, given: int = 0, delivered: int = 0) -> tuple[ReleaseQueue, HighWatermarks, Queue]:
    release_queue, _ = make_ledger(log)
    marks = HighWatermarks(release_queue)
    queue = Queue(3, "q", "q", durable=True)
    marks.open(queue, given, {4: delivered})
    return release_queue, marks, queue


def written(log: FakeLog) -> list[tuple[int, int, int]]:
    payloads = [record.payload for record in log.records if record.kind == MARKS]
    return [(queue, given, delivered[4]) for queue, given, delivered in map(decode_marks, payloads)]


def test_entries_are_released_in_the_order_in_which_they_were_placed() -> None:
    log = FakeLog()
    release_queue, released = make_ledger(log)
    first, second = (release_queue.write(2, [b"x"]) for _ in range(2))
    release_queue.release_after(second, ["b"], lambda: released.append("then b"))  # type: ignore[list-item]
    # Its record is earlier, but it was given later.
    release_queue.release_after(first, ["a"], lambda: released.append("then a"))  # type: ignore[list-item]
    release_queue.release_after(0, (), lambda: released.append("then c"))
    assert release_queue.waiting == 3
    log.sync(first)
    assert released == []
    log.sync(second)
    assert released == [["b"], "then b", ["a"], "then a", "then c"]
    assert release_queue.waiting == 0


def test_what_is_durable_already_is_released_at_once_if_nothing_waits() -> None:
    log = FakeLog()
    release_queue, released = make_ledger(log)
    position = release_queue.write(2, [b"x"])
    log.sync()
    release_queue.release_after(position, (), lambda: released.append(1))
    assert released == [1]


def test_without_a_journal_everything_is_released_at_once() -> None:
    release_queue, released = make_ledger(None)
    assert release_queue.write(2, [b"x"]) == 0
    release_queue.release_after(0, ["a"], lambda: released.append("then"))  # type: ignore[list-item]
    release_queue.when_all_is_durable(lambda: released.append("durable"))
    assert released == [["a"], "then", "durable"]


def test_whoever_waits_for_everything_hurries_the_journal() -> None:
    log = FakeLog()
    release_queue, released = make_ledger(log)
    release_queue.write(2, [b"x"], lazy=True)
    release_queue.when_all_is_durable(lambda: released.append(1))
    assert (log.hurries, released) == (1, [])
    log.sync()
    assert released == [1]


def test_what_is_released_may_place_more() -> None:
    log = FakeLog()
    release_queue, released = make_ledger(log)

    def more() -> None:
        release_queue.release_after(release_queue.write(2, [b"y"]), (), lambda: released.append("second"))
        released.append("first")

    release_queue.release_after(release_queue.write(2, [b"x"]), (), more)
    log.sync(1)
    assert released == ["first"]
    log.sync()
    assert released == ["first", "second"]


def test_doomed_records_die_with_the_next_record_and_not_before_it_is_placed() -> None:
    log = FakeLog()
    release_queue, _ = make_ledger(log)
    for _ in range(3):
        release_queue.write(2, [b"x"])
    release_queue.doom([1, 3])
    log.full = True
    with pytest.raises(AddressFullError):
        release_queue.write(2, [b"y"])
    log.full = False
    release_queue.write(2, [b"y"], deletes=[2])
    assert log.records[-1].deletes == (2, 1, 3)
    release_queue.write(2, [b"z"])
    assert log.records[-1].deletes == ()


def test_many_doomed_records_die_by_and_by() -> None:
    log = FakeLog()
    release_queue, _ = make_ledger(log)
    for _ in range(2_500):
        release_queue.write(2, [b"x"])
    release_queue.doom(range(1, 2_501))
    sizes = []
    for _ in range(4):
        release_queue.write(2, [b"y"])
        sizes.append(len(log.records[-1].deletes))
    assert sizes == [1_000, 1_000, 500, 0]


# -- marks


def test_a_mark_of_what_may_be_delivered_moves_ahead_by_a_block_once_it_is_durable() -> None:
    log = FakeLog()
    _, marks, queue = marked(log)
    marks.cover_delivered(queue, queue.lists.all[0], 10)
    assert queue.lists.high_watermark == 0
    marks.cover_delivered(queue, queue.lists.all[0], 20)
    assert written(log) == [(3, 0, 10 + WATERMARK_BLOCK)]
    log.sync()
    assert queue.lists.high_watermark == 10 + WATERMARK_BLOCK
    marks.cover_delivered(queue, queue.lists.all[0], 10 + WATERMARK_BLOCK)
    assert len(log.records) == 1


def test_a_mark_may_be_moved_before_it_is_reached() -> None:
    log = FakeLog()
    _, marks, queue = marked(log, delivered=100)
    marks.cover_delivered(queue, queue.lists.all[0], 60, 40)
    assert log.records == []
    marks.cover_delivered(queue, queue.lists.all[0], 61, 40)
    assert written(log) == [(3, 0, 61 + WATERMARK_BLOCK)]


def test_a_mark_never_moves_back_however_small_its_blocks_are() -> None:
    log = FakeLog()
    release_queue, _ = make_ledger(log)
    marks = HighWatermarks(release_queue, lambda name: name == "broker.no_block")
    queue = Queue(3, "q", "q", durable=True)
    marks.open(queue, 0, {4: 100})
    marks.cover_delivered(queue, queue.lists.all[0], 60, 50)
    marks.cover_delivered(queue, queue.lists.all[0], 101)
    assert written(log) == [(3, 0, 100), (3, 0, 101)]


def test_numbers_that_leave_no_trace_are_covered_ahead_and_each_mark_replaces_the_last() -> None:
    log = FakeLog()
    _, marks, queue = marked(log)
    queue.last = 5
    assert marks.cover_given(queue) == 1
    queue.last = 5 + limits.SEQUENCE_RESERVE
    assert marks.cover_given(queue) == 1
    queue.last += 1
    assert marks.cover_given(queue) == 2
    assert log.records[-1].deletes == (1,)
    assert written(log)[-1] == (3, 6 + 2 * limits.SEQUENCE_RESERVE, 0)
    marks.cover_delivered(queue, queue.lists.all[0], 1)
    assert written(log)[-1] == (3, 6 + 2 * limits.SEQUENCE_RESERVE, 1 + WATERMARK_BLOCK)
    assert [record.position for record in log.living()] == [3]


def test_at_a_stop_the_marks_are_exact_and_written_only_if_they_were_not() -> None:
    log = FakeLog()
    _, marks, queue = marked(log)
    queue.last = 7
    marks.settle(queue, {4: 4})
    marks.settle(queue, {4: 4})
    assert written(log) == [(3, 7, 4)]


def test_marks_move_on_a_full_disk() -> None:
    log = FakeLog(full=True)
    _, marks, queue = marked(log)
    marks.cover_delivered(queue, queue.lists.all[0], 1)
    queue.last = 1
    marks.cover_given(queue)
    assert len(written(log)) == 2


def test_a_queue_that_leaves_no_trace_has_no_marks() -> None:
    log = FakeLog()
    release_queue, _ = make_ledger(log)
    marks = HighWatermarks(release_queue)
    queue = Queue(1, "q", "q", durable=False)
    marks.open(queue)
    assert queue.lists.high_watermark == math.inf
    assert marks.cover_given(queue) == 0
    marks.cover_delivered(queue, queue.lists.all[0], 5)
    marks.settle(queue, {4: 5})
    assert (marks.close(queue), log.records) == ([], [])


def test_a_queue_takes_its_marks_along_when_it_is_deleted() -> None:
    log = FakeLog()
    release_queue, marks, queue = marked(log)
    release_queue.write(DEFINITION, [b"x"])
    marks.cover_delivered(queue, queue.lists.all[0], 5)
    assert marks.close(queue) == [2]
    # The mark was on its way when the queue went.
    log.sync()
    marks.cover_delivered(queue, queue.lists.all[0], 10**6)
    assert len(log.records) == 2
