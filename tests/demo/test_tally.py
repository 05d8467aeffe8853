"""The count finds what is lost and what comes twice, and only that."""

from __future__ import annotations

import pytest

from meshq.demo._report_format import ALTERED, Delivered
from meshq.demo._tally_machine import Tally
from meshq.errors import UsageError
from tests.demo.kit import Story, made_up


def test_what_comes_once_is_counted_once_and_nothing_differs() -> None:
    story = Story(30)
    story.acknowledged("consumer 1", *range(0, 30, 2))
    story.acknowledged("consumer 2", *range(1, 30, 2))
    result = story.result()
    assert (result.delivered, result.lost, result.redelivered, result.duplicates) == (30, 0, 0, 0)
    assert result.differences == []
    assert sum(ours.flights for ours, _ in result.carriers.values()) == 30
    assert sum(ours.delays for ours, _ in result.carriers.values()) == 27


def test_a_report_that_a_consumer_drops_is_a_loss_with_its_name() -> None:
    story = Story()
    story.acknowledged("consumer 1", 0, 1, 2, 4, 5, 6, 7, 8, 9)
    result = story.result()
    assert result.lost == 1
    assert result.differences[0] == "lost: 1, first of them 2013-1-4 XX 3 EWR"
    assert "UA: 3 flights delivered, 4 in the file" in result.differences


def test_what_was_never_confirmed_to_the_producer_is_not_lost_but_named() -> None:
    story = Story()
    story.acknowledged("consumer 1", *range(8))
    result = story.result(confirmed=8)
    assert result.lost == 0
    assert "not confirmed to the producer: 2" in result.differences


def test_a_second_delivery_without_a_mark_is_a_duplicate() -> None:
    story = Story()
    story.acknowledged("consumer 1", *range(10))
    story.acknowledged("consumer 2", 6)
    result = story.result()
    assert (result.redelivered, result.duplicates, result.delivered) == (0, 1, 10)
    assert result.differences == ["duplicate: 1, first of them 2013-1-7 XX 6 EWR"]


def test_a_second_delivery_without_a_mark_is_a_duplicate_even_if_the_first_was_not_acknowledged() -> None:
    story = Story()
    story.settled("consumer 1", story.delivered("consumer 1", *range(10)), *[True] * 9, False)
    story.acknowledged("consumer 2", 9)
    assert (story.result().redelivered, story.result().duplicates) == (0, 1)


def test_a_marked_delivery_after_one_that_was_not_acknowledged_is_a_redelivery() -> None:
    story = Story()
    story.settled("consumer 1", story.delivered("consumer 1", *range(10)), *[True] * 7, *[False] * 3)
    story.acknowledged("consumer 2", 7, 9, marked=True)
    story.acknowledged("consumer 1", 8, marked=True)
    result = story.result()
    assert (result.redelivered, result.duplicates, result.delivered) == (3, 0, 10)
    assert result.differences == []


def test_a_mark_does_not_excuse_what_was_acknowledged_before() -> None:
    story = Story()
    story.acknowledged("consumer 1", *range(10))
    story.acknowledged("consumer 2", 3, marked=True)
    assert (story.result().redelivered, story.result().duplicates) == (0, 1)


def test_an_acknowledgement_that_is_reported_late_counts_all_the_same() -> None:
    story = Story()
    first = story.delivered("consumer 1", *range(10))
    story.acknowledged("consumer 2", 3, marked=True)
    story.settled("consumer 1", first, *[True] * 10)
    assert (story.result().redelivered, story.result().duplicates) == (0, 1)


def test_a_mark_on_a_first_delivery_means_nothing() -> None:
    story = Story()
    story.acknowledged("consumer 1", *range(10), marked=True)
    assert story.result().differences == []


def test_the_order_is_that_of_the_clock_and_not_of_the_reports() -> None:
    story = Story()
    # The second delivery is reported first; by the clock it came after the unmarked one.
    story.settled("consumer 2", story.delivered("consumer 2", 5, marked=True, at=2_000), True)
    story.settled("consumer 1", story.delivered("consumer 1", *range(10), at=1_000), *[True] * 5, False, *[True] * 4)
    result = story.result()
    assert (result.redelivered, result.duplicates, result.delivered) == (1, 0, 10)


def test_each_further_delivery_is_judged_by_all_before_it() -> None:
    story = Story(1)
    story.settled("consumer 1", story.delivered("consumer 1", 0), False)
    story.settled("consumer 2", story.delivered("consumer 2", 0, marked=True), False)
    story.acknowledged("consumer 3", 0, marked=True)
    assert (story.result().redelivered, story.result().duplicates) == (2, 0)
    story.settled("consumer 1", story.delivered("consumer 1", 0, marked=True), False)
    assert (story.result().redelivered, story.result().duplicates) == (2, 1)


def test_a_flight_twice_in_one_batch_is_a_duplicate() -> None:
    story = Story(2)
    story.acknowledged("consumer 1", 0, 1, 1)
    assert story.result().duplicates == 1


def test_what_the_file_does_not_have_is_named() -> None:
    story = Story(3)
    story.acknowledged("consumer 1", 0, 1, 2)
    stranger = Delivered(
        batch=9, at_ns=9, keys=[b"2013-1-1 ZZ 1 LGA"], carriers=["ZZ"], delays=[1], flags=b"\0", node="n"
    )
    story.tally.take_delivered("consumer 1", stranger)
    result = story.result()
    assert result.differences == ["delivered and not in the file: 1"]
    assert result.delivered == 3


def test_a_message_that_does_not_fit_itself_is_named() -> None:
    story = Story(1)
    flight = story.flights[0]
    flags = bytes([ALTERED])
    report = Delivered(
        batch=1, at_ns=1, keys=[flight.key], carriers=[flight.carrier], delays=[flight.delay], flags=flags, node="n"
    )
    story.tally.take_delivered("consumer 1", report)
    (difference,) = story.result().differences
    assert difference == "delivered with a body, properties and duplicate id that don't fit each other: 1"


def test_another_delay_than_the_file_has_is_named() -> None:
    story = Story(1)
    flight = story.flights[0]
    report = Delivered(
        batch=1,
        at_ns=1,
        keys=[flight.key],
        carriers=[flight.carrier],
        delays=[flight.delay + 1],
        flags=b"\0",
        node="n",
    )
    story.tally.take_delivered("consumer 1", report)
    assert story.result().differences == ["UA: -2 minutes of departure delay delivered, -3 in the file"]


def test_what_is_with_a_consumer_is_known_by_consumer() -> None:
    story = Story()
    first = story.delivered("consumer 1", 0, 1, 2)
    story.delivered("consumer 2", 3)
    assert story.tally.unsettled == {"consumer 1": 3, "consumer 2": 1}
    story.settled("consumer 1", first, True, False, True)
    assert story.tally.unsettled == {"consumer 1": 0, "consumer 2": 1}
    assert story.tally.unsettled_total == 1


def test_the_batches_of_one_moment_can_be_waited_for() -> None:
    story = Story()
    first, other = story.delivered("consumer 1", 0, 1), story.delivered("consumer 2", 2)
    batches = story.tally.open_batches()
    story.delivered("consumer 1", 3)
    story.settled("consumer 1", first, True, False)
    assert not story.tally.all_settled(batches)
    story.settled("consumer 2", other, False)
    assert story.tally.all_settled(batches)
    assert story.tally.unsettled_total == 1


def test_a_key_that_stands_for_two_flights_is_refused() -> None:
    flights = made_up(3)
    with pytest.raises(UsageError, match="two lines of the file"):
        Tally([*flights, flights[1]])


def test_each_node_has_its_own_count_and_the_same_sum() -> None:
    story = Story(9, consumer_1="one", consumer_2="two", consumer_3="three")
    story.settled("consumer 1", story.delivered("consumer 1", 0, 1, 2), True, False, False)
    story.acknowledged("consumer 2", 1, 3, 4, marked=True)
    story.acknowledged("consumer 3", 0, marked=True)
    verdict = story.tally.verdict(0)
    assert dict(story.tally.delivered_to) == {"one": 3, "two": 2, "three": 0}
    assert (verdict.redelivered_to, verdict.duplicates_to) == ({"two": 1}, {"three": 1})
    assert (verdict.redelivered, len(verdict.duplicates)) == (1, 1)


def test_a_consumer_that_moves_counts_at_each_node_where_it_was() -> None:
    story = Story(4)
    story.acknowledged("consumer 1", 0, 1)
    story.settle_at("node-2", "consumer 1")
    story.acknowledged("consumer 1", 2, 3)
    assert dict(story.tally.delivered_to) == {"node-1": 2, "node-2": 2}
