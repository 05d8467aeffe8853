"""Producers' numbers: what makes a resent message harmless, across sessions and restarts."""

from __future__ import annotations

import pytest

from meshq.broker.ingress import _producer_sequences
from meshq.broker.ingress._producer_sequences import ProducerSequences
from meshq.broker.records import PRODUCERS, decode_producers
from meshq.wire import BY_NAME, FLAG_RESENT
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, make_core, make_house

OTHER = b"another-producer"


def restarted(house: House) -> House:
    """The node after a crash that lost nothing that was on disk."""
    log = house.log.after_crash(house.log.durable)
    return House(make_core(log, records=house.log.recovered(house.log.durable)))


def ready(house: House) -> int:
    return house.queue().counts.ready


def opened(house: House) -> tuple[RawClient, int]:
    client = house.client()
    return client, client.produce()


# -- the marks alone


def test_a_mark_is_the_highest_number_stored() -> None:
    marks = ProducerSequences()
    assert marks.get(PRODUCER) is None and marks.whole(PRODUCER) == 0
    marks.raise_to(PRODUCER, 1, 3)
    marks.raise_to(PRODUCER, 4, 4)
    assert (marks.get(PRODUCER), marks.whole(PRODUCER), len(marks)) == (4, 4, 1)


def test_what_was_passed_over_is_a_gap_until_it_is_stored() -> None:
    marks = ProducerSequences()
    marks.raise_to(PRODUCER, 1, 3)
    marks.raise_to(PRODUCER, 8, 9)
    assert (marks.get(PRODUCER), marks.whole(PRODUCER)) == (9, 3)
    cases = {(4, 7): True, (5, 6): True, (3, 4): False, (7, 8): False, (1, 3): False, (8, 9): False}
    assert {rows: marks.lacks(PRODUCER, *rows) for rows in cases} == cases
    marks.raise_to(PRODUCER, 5, 5)
    assert [marks.lacks(PRODUCER, number, number) for number in (4, 5, 6, 7)] == [True, False, True, True]
    assert marks.whole(PRODUCER) == 3
    marks.raise_to(PRODUCER, 4, 4)
    assert marks.whole(PRODUCER) == 5
    marks.raise_to(PRODUCER, 6, 7)
    assert marks.whole(PRODUCER) == 9
    assert not marks.lacks(PRODUCER, 6, 7)


def test_the_least_recently_active_producer_is_forgotten_with_its_gaps_and_that_is_remembered() -> None:
    marks = ProducerSequences(2)
    marks.raise_to(b"a" * 16, 1, 1)
    marks.raise_to(b"a" * 16, 5, 5)
    marks.raise_to(b"b" * 16, 1, 1)
    assert not marks.forgets()
    marks.raise_to(b"a" * 16, 6, 6)
    marks.raise_to(b"c" * 16, 1, 1)
    assert marks.forgets() and marks.get(b"b" * 16) is None and marks.get(b"a" * 16) == 6
    marks.raise_to(b"c" * 16, 2, 2)
    marks.raise_to(b"d" * 16, 1, 1)
    marks.raise_to(b"a" * 16, 9, 9)
    # Nobody knows what came before: it may have been stored.
    assert not marks.lacks(b"a" * 16, 3, 3) and marks.whole(b"a" * 16) == 9


def test_only_the_last_gaps_of_a_producer_are_remembered() -> None:
    marks = ProducerSequences()
    for number in range(1, 2 * (_producer_sequences.GAPS_OF_ONE_MAX + 2), 2):
        marks.raise_to(PRODUCER, number + 1, number + 1)
    assert not marks.lacks(PRODUCER, 1, 1) and not marks.lacks(PRODUCER, 3, 3)
    assert marks.lacks(PRODUCER, 5, 5)
    assert marks.whole(PRODUCER) == 4


def test_gaps_of_all_producers_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_producer_sequences, "GAPS_MAX", 3)
    marks = ProducerSequences()
    names = [bytes([number]) * 16 for number in range(5)]
    for name in names:
        marks.raise_to(name, 2, 2)
    assert [marks.lacks(name, 1, 1) for name in names] == [False, False, True, True, True]


def test_a_checkpoint_says_everything() -> None:
    marks = ProducerSequences()
    marks.raise_to(PRODUCER, 1, 3)
    marks.raise_to(PRODUCER, 6, 7)
    marks.raise_to(OTHER, 1, 1)
    ((_, payload),) = marks.checkpoint()
    record = decode_producers(payload)
    assert record == (False, ((PRODUCER, 7), (OTHER, 1)), ((PRODUCER, 4, 5),))
    assert ProducerSequences().checkpoint() == []


def test_a_node_that_forgot_everybody_still_says_so() -> None:
    marks = ProducerSequences(0)
    marks.raise_to(PRODUCER, 1, 1)
    assert [decode_producers(payload) for _, payload in marks.checkpoint()] == [(True, (), ())]


def test_a_checkpoint_of_many_producers_is_cut_into_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_producer_sequences, "PRODUCERS_MAX", 2)
    marks = ProducerSequences()
    for number in range(5):
        marks.raise_to(bytes([number]) * 16, 2, 2)
    records = [decode_producers(payload) for _, payload in marks.checkpoint()]
    assert [len(record.marks) for record in records] == [2, 2, 1]
    assert [len(record.gaps) for record in records] == [2, 2, 1]


# -- resent messages


def test_what_the_mark_covers_is_confirmed_and_not_stored_again() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    client.put(channel, b"1", b"2")
    client.put(channel, b"1", b"2", first=1, flags=FLAG_RESENT)
    client.put(channel, b"2", first=2, flags=FLAG_RESENT)
    assert ready(house) == 2
    assert client.confirmed[-1] == (channel, 2)


def test_the_confirm_of_what_was_resent_waits_for_the_original() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    house.auto = False
    client.put(channel, b"1")
    client.put(channel, b"1", first=1, flags=FLAG_RESENT)
    assert client.confirmed == []
    house.log.sync()
    assert client.confirmed == [(channel, 1)]


def test_what_lies_above_the_mark_is_stored_though_it_is_marked_as_resent() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    client.put(channel, b"1", flags=FLAG_RESENT)
    client.put(channel, b"2", flags=FLAG_RESENT)
    assert ready(house) == 2


@pytest.mark.parametrize(("first", "rows", "flags"), [(2, 2, FLAG_RESENT), (1, 2, 0), (2, 2, 0), (0, 1, 0)])
def test_a_run_astride_the_mark_or_below_it_without_the_flag_breaks_the_protocol(
    first: int, rows: int, flags: int
) -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    client.put(channel, b"1", b"2")
    client.numbers[channel] = -1 if not first else client.numbers[channel]
    client.put(channel, *[b"x"] * rows, first=first, flags=flags)
    assert client.good_bye().code == BY_NAME["bad_number"].number
    assert house.sessions.by_number == {}


def test_a_producer_learns_how_far_it_has_come_in_a_new_session() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    assert client.numbers[channel] == 0
    client.put(channel, b"1", b"2", b"3")
    other = house.client()
    assert other.numbers[other.produce()] == 3
    assert other.numbers[other.produce(producer=OTHER)] == 0


def test_marks_survive_a_crash_though_every_message_is_gone() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    consumer = client.consume()
    client.put(channel, b"1", b"2")
    client.settle(consumer, (1, 2))
    after = restarted(house)
    client, channel = opened(after)
    assert client.numbers[channel] == 2
    client.put(channel, b"1", b"2", first=1, flags=FLAG_RESENT)
    assert ready(after) == 0 and client.confirmed == [(channel, 2)]


def test_marks_survive_a_crash_behind_a_checkpoint() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    consumer = client.consume()
    client.put(channel, b"1", b"2")
    client.settle(consumer, (1, 2))
    house.log.checkpoint(house.core.checkpoint())
    house.log.sync()
    assert house.log.kinds()[-1] == PRODUCERS
    after = restarted(house)
    client, channel = opened(after)
    assert client.numbers[channel] == 2


def test_a_producer_that_was_forgotten_cannot_resend() -> None:
    house = make_house(FakeLog())
    house.core.ingress.producers._capacity = 2
    client, channel = opened(house)
    client.put(channel, b"1")
    client.leave(channel)
    for other in (OTHER, b"third---producer"):
        channel = client.produce(producer=other)
        client.put(channel, b"1")
        client.leave(channel)
    channel = client.produce()
    assert client.numbers[channel] == 0
    client.put(channel, b"1", first=1, flags=FLAG_RESENT)
    assert client.refused() == [(1, 1, BY_NAME["unknown_producer"].number)]
    client.put(channel, b"2", first=2)
    assert ready(house) == 4


def test_that_somebody_was_forgotten_survives_with_the_checkpoint() -> None:
    house = make_house(FakeLog())
    house.core.ingress.producers._capacity = 1
    client, channel = opened(house)
    client.put(channel, b"1")
    client.leave(channel)
    client.put(client.produce(producer=OTHER), b"1")
    house.log.checkpoint(house.core.checkpoint())
    house.log.sync()
    assert restarted(house).core.ingress.producers.forgets()


# -- refused, and never told


def refused_and_stored(house: House) -> None:
    """Message 2 is refused, message 3 is stored, and the client hears of neither."""
    client, channel = opened(house)
    client.put(channel, b"1")
    client.deaf = True
    house.log.full = True
    client.put(channel, b"2")
    house.log.full = False
    client.put(channel, b"3")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_message_that_was_refused_unheard_is_stored_when_it_is_sent_again_after_a_crash(checkpoint: bool) -> None:
    house = make_house(FakeLog())
    refused_and_stored(house)
    if checkpoint:
        house.log.checkpoint(house.core.checkpoint())
        house.log.sync()
    after = restarted(house)
    client, channel = opened(after)
    # What was stored above it is not named: else the client would take the refused one for stored.
    assert client.numbers[channel] == 1
    for number in (2, 3):
        client.put(channel, b"%d" % number, first=number, flags=FLAG_RESENT)
    assert client.confirmed[-1] == (channel, 3)
    consumer = client.consume()
    assert sorted(client.bodies(consumer)) == [b"1", b"2", b"3"]
    again = restarted(after)
    assert ready(again) == 3
    client, channel = opened(again)
    assert client.numbers[channel] == 3


def test_a_message_that_was_refused_is_stored_when_it_is_sent_again_in_its_session() -> None:
    house = make_house(FakeLog())
    refused_and_stored(house)
    client, channel = opened(house)
    assert client.numbers[channel] == 1
    client.put(channel, b"2", first=2, flags=FLAG_RESENT)
    client.put(channel, b"2", first=2, flags=FLAG_RESENT)
    assert ready(house) == 3


def test_a_checkpoint_covers_what_lies_before_it_and_finds_no_gaps_there() -> None:
    house = make_house(FakeLog())
    client, channel = opened(house)
    consumer = client.consume()
    for body in (b"1", b"2", b"3"):
        client.put(channel, body)
    client.settle(consumer, (1, 2))
    house.log.checkpoint(house.core.checkpoint())
    house.log.sync()
    client.put(channel, b"4")
    after = restarted(house)
    # The records of 1 and 2 are gone; that they were stored is not.
    assert not after.core.ingress.producers.lacks(PRODUCER, 1, 2)
    client, channel = opened(after)
    assert client.numbers[channel] == 4
