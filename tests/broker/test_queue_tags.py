"""Tags: what a consumer of a queue holds by number, and may settle once."""

from __future__ import annotations

import pytest

from meshq.errors import RemoteProtocolError
from tests.broker.queues import dealt, join, make_queue, numbers, put, settle


@pytest.mark.parametrize("tags", [(0, 1), (1, 7), (7, 7), (3, 2), (2, 2), (1, 3)])
def test_tags_that_are_not_out_are_refused_and_nothing_has_changed(tags: tuple[int, int]) -> None:
    queue = make_queue()
    put(queue, 3)
    put(queue, 3)
    consumer = join(queue)
    dealt(queue)
    settle(consumer, 2, 2)
    before = (
        consumer.unacked,
        consumer.unacked_bytes,
        queue.counts.ready,
        queue.counts.unacked,
        queue.counts.acknowledged,
    )
    with pytest.raises(RemoteProtocolError) as caught:
        consumer.take(*tags)
    assert caught.value.refusal == "bad_tag"
    assert (
        consumer.unacked,
        consumer.unacked_bytes,
        queue.counts.ready,
        queue.counts.unacked,
        queue.counts.acknowledged,
    ) == before
    queue.check()
    assert settle(consumer, 1, 1) + settle(consumer, 3, 6) == [1, 3, 4, 5, 6]


def test_a_range_over_a_grant_that_is_settled_whole_is_refused() -> None:
    queue = make_queue()
    for _ in range(3):
        put(queue, 2)
    consumer = join(queue)
    dealt(queue)
    settle(consumer, 3, 4)
    with pytest.raises(RemoteProtocolError, match="tag 3 is settled already"):
        consumer.take(1, 6)
    with pytest.raises(RemoteProtocolError, match="tag 4 is settled already"):
        consumer.take(4, 5)
    assert consumer.unacked == 4


def test_tags_may_be_settled_in_any_order_and_across_grants() -> None:
    queue = make_queue()
    put(queue, 3)
    put(queue, 3)
    consumer = join(queue)
    dealt(queue)
    assert settle(consumer, 6, 6) == [6]
    assert settle(consumer, 2, 4) == [2, 3, 4]
    assert settle(consumer, 1, 1, rejected=True) == [1]
    assert settle(consumer, 5, 5) == [5]
    queue.check()
    assert (
        queue.counts.acknowledged,
        queue.counts.removed["rejected"],
        queue.counts.unacked,
        queue.lists.live_runs,
    ) == (5, 1, 0, 0)


def test_a_consumer_without_grants_has_no_tags() -> None:
    queue = make_queue()
    consumer = join(queue)
    with pytest.raises(RemoteProtocolError):
        consumer.take(1, 1)


def test_what_is_unsettled_is_listed_with_its_tags() -> None:
    queue = make_queue()
    put(queue, 5)
    put(queue, 1)
    consumer = join(queue)
    dealt(queue)
    settle(consumer, 2, 2)
    settle(consumer, 4, 4)
    parts = consumer.unsettled()
    assert [(tag, numbers(span)) for tag, span in parts] == [(1, [1]), (3, [3]), (5, [5]), (6, [6])]
    assert (consumer.unacked, consumer.unacked_bytes, consumer.unsettled()) == (0, 0, [])
