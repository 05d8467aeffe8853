"""Every frame of an attached session, what it does, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshq import limits
from meshq.wire import (
    BY_NAME,
    FLAG_DURABLE,
    FLAG_RETURN,
    Answer,
    Call,
    Consume,
    Deliver,
    Frame,
    FrameType,
    Leave,
    Produce,
    encode_run,
    header_of,
)
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, make_house


def code(name: str) -> int:
    return BY_NAME[name].number


def opened(house: House) -> tuple[RawClient, int, int]:
    client = house.client()
    return client, client.produce(), client.consume()


def broken_by(client: RawClient) -> str:
    """The name of the rule that the client broke."""
    (name,) = [name for name, entry in BY_NAME.items() if entry.number == client.good_bye().code]
    assert client.closed and client.house.sessions.by_number == {}
    return name


# -- PRODUCE, CONSUME, LEAVE


def test_channels_rise_and_are_used_once() -> None:
    house = make_house()
    client = house.client()
    client.channels = 6
    assert client.produce() == 7
    assert client.code == 0
    client.channels = 6
    client.produce("other")
    assert broken_by(client) == "bad_channel"


def test_a_channel_that_was_left_is_not_used_again() -> None:
    house = make_house()
    client = house.client()
    channel = client.consume()
    client.leave(channel)
    client.channels = channel - 1
    client.consume()
    assert broken_by(client) == "bad_channel"


def test_too_many_producers_and_consumers_are_refused_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNELS_MAX", 2)
    house = make_house()
    client, producer, _ = opened(house)
    client.produce()
    assert client.code == code("too_many")
    client.consume()
    assert client.code == code("too_many")
    client.leave(producer)
    client.produce()
    assert client.code == 0
    assert not client.all_closed()


@pytest.mark.parametrize(
    ("name", "refusal"), [("", "usage"), ("a::", "usage"), ("a::b::c", "usage"), ("x" * 513, "usage"), ("q", "")]
)
def test_names_are_checked(name: str, refusal: str) -> None:
    house = make_house()
    client = house.client()
    client.produce(name)
    assert client.code == (code(refusal) if refusal else 0)
    client.consume(name)
    assert client.code == (code(refusal) if refusal else 0)


def test_a_consumer_of_a_multicast_address_names_a_queue() -> None:
    house = make_house()
    client = house.client()
    client.call("create_address", name="news", routing="multicast")
    client.consume("news")
    assert client.code == code("usage")
    client.consume("news::mine")
    assert header_of(client.last(FrameType.ANSWER), Answer).named == {"queue": "mine", "address": "news"}


@pytest.mark.parametrize("window", [(0, 1), (1, 0)])
def test_a_consumer_with_an_empty_window_breaks_the_protocol(window: tuple[int, int]) -> None:
    house = make_house()
    client = house.client()
    client.consume("q", *window)
    assert broken_by(client) == "bad_header"


@pytest.mark.parametrize("frame_type", [FrameType.PRODUCE, FrameType.CONSUME, FrameType.LEAVE, FrameType.CALL])
def test_a_request_has_an_id_of_its_own(frame_type: FrameType) -> None:
    headers: dict[FrameType, Any] = {
        FrameType.PRODUCE: Produce(producer=PRODUCER, address="q"),
        FrameType.CONSUME: Consume(queue="q", window=1, window_bytes=1),
        FrameType.LEAVE: Leave(),
        FrameType.CALL: Call(operation="flush"),
    }
    for first, refusal in ((0, "bad_header"), (5, "bad_number")):
        house = make_house(FakeLog())
        client, producer, _ = opened(house)
        house.auto = False
        client.put(producer, b"1")
        channel = {FrameType.LEAVE: producer, FrameType.CALL: 0}.get(frame_type, 9)
        if first:
            client.send(FrameType.CALL, Call(operation="flush"), first=5)
        client.send(frame_type, headers[frame_type], first=first, channel=channel)
        assert broken_by(client) == refusal


def test_an_id_may_be_used_again_once_it_is_answered() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for _ in range(2):
        client.send(FrameType.CALL, Call(operation="flush"), first=5)
    assert len(client.all(FrameType.ANSWER)) == 2


def test_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLS_MAX", 2)
    house = make_house(FakeLog())
    client, producer, _ = opened(house)
    house.auto = False
    client.put(producer, b"1")
    client.call("flush")
    client.call("flush")
    assert not client.all_closed()
    client.call("flush")
    assert broken_by(client) == "too_many"


def test_leaving_gives_back_and_marks_only_what_reached_the_application() -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2", b"3", b"4")
    client.settle(consumer, (1, 1))
    client.leave(consumer, handed=3)
    again = client.consume()
    assert [(message.body, message.delivery_count) for message in client.got(again)] == [
        (b"2", 2),
        (b"3", 1),
        (b"4", 1),
    ]
    house.check()


@pytest.mark.parametrize(("handed", "counts"), [(0, [1, 1]), (1, [1, 1]), (2, [2, 1]), (3, [2, 2]), (10**9, [2, 2])])
def test_handed_splits_a_grant(handed: int, counts: list[int]) -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2")
    client.leave(consumer, handed=handed)
    again = client.consume()
    assert [message.delivery_count for message in client.got(again)] == counts


def test_handed_splits_what_was_dealt_by_stride() -> None:
    house = make_house()
    client, producer, one = opened(house)
    two = client.consume()
    client.put(producer, *[b"%d" % number for number in range(6)])
    assert client.bodies(one) == [b"0", b"2", b"4"]
    client.leave(one, handed=3)
    client.leave(two, handed=1)
    again = client.consume()
    assert [message.delivery_count for message in client.got(again)] == [2, 1, 2, 1, 1, 1]


def test_a_producer_that_left_sends_nothing_more_and_a_stranger_cannot_leave() -> None:
    house = make_house()
    client, producer, _ = opened(house)
    assert client.leave(producer) == {}
    client.put(producer, b"1")
    assert broken_by(client) == "bad_channel"
    other = house.client()
    other.leave(4)
    assert broken_by(other) == "bad_channel"


def test_confirms_of_a_producer_that_left_are_not_said() -> None:
    house = make_house(FakeLog())
    client, producer, _ = opened(house)
    house.auto = False
    client.put(producer, b"1")
    client.leave(producer)
    house.log.sync()
    assert client.confirmed == []
    assert house.queue().counts.added == 1


# -- SEND


def test_a_run_on_a_channel_that_is_no_producers_breaks_the_protocol() -> None:
    for wrong in (2, 9):
        house = make_house()
        client, _, _ = opened(house)
        client.numbers[wrong] = 0
        client.put(wrong, b"1")
        assert broken_by(client) == "bad_channel"


def test_a_run_whose_rows_contradict_its_body_breaks_the_protocol_and_stores_nothing() -> None:
    house = make_house()
    client, producer, _ = opened(house)
    run = encode_run([b"12", b"34"])
    client.send(FrameType.SEND, channel=producer, first=1, count=2, table=run.table, body=b"123")
    assert broken_by(client) == "bad_table"
    assert house.queue().counts.added == 0 and house.core.memory.reserved_bytes == 0


def test_message_numbers_end_before_they_overflow() -> None:
    house = make_house()
    client, producer, _ = opened(house)
    client.put(producer, b"1", first=2**63 - 2)
    assert not client.all_closed()
    client.put(producer, b"1", b"2", first=2**63 - 1)
    assert broken_by(client) == "bad_number"


def test_what_is_delivered_says_where_it_comes_from() -> None:
    house = make_house(FakeLog())
    client, producer, one = opened(house)
    two = client.consume()
    client.put(producer, b"0", b"1", b"2", b"3")
    frame = next(frame for frame in client.all(FrameType.DELIVER) if frame.channel == two)
    header = header_of(frame, Deliver)
    assert (header.address, header.producer, header.number, header.sequence, header.step) == ("q", PRODUCER, 2, 2, 2)
    assert (frame.first, frame.count, frame.flags) == (1, 2, FLAG_DURABLE)
    assert client.bodies(one) == [b"0", b"2"] and client.bodies(two) == [b"1", b"3"]
    client.put(producer, b"4", durable=False)
    assert client.last(FrameType.DELIVER).flags == 0


def test_parts_of_a_run_keep_the_offsets_of_their_table() -> None:
    house = make_house()
    client = house.client()
    producer, consumer = client.produce(), client.consume("q", 2)
    client.put(producer, b"0", b"11", b"222", b"3333", b"4")
    client.settle(consumer, (1, 2))
    client.settle(consumer, (3, 4))
    assert client.bodies(consumer) == [b"0", b"11", b"222", b"3333", b"4"]


def test_a_node_on_its_way_out_neither_confirms_nor_refuses() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    house.core.closing.begin("the node is stopping")
    client.put(producer, b"2")
    assert (client.confirmed, client.refused(), house.queue().counts.added) == ([(producer, 1)], [], 1)
    # Opening anything and calls are answered; what is delivered can still be settled.
    client.produce("new")
    assert client.code == code("not_active")
    client.call("create_queue", name="new")
    assert client.code == code("not_active")
    client.settle(consumer, (1, 1), call=99)
    assert client.answer(99) == Answer()
    assert house.queue().counts.acknowledged == 1
    assert house.core.memory.reserved_bytes > 0


def test_a_broken_journal_ends_the_connection_that_wants_to_write() -> None:
    house = make_house(FakeLog())
    client, producer, _ = opened(house)
    other = house.client()
    house.log.failed = True
    client.put(producer, b"1")
    assert client.refused() == [(1, 1, code("journal_broken"))]
    other.call("create_queue", name="new")
    assert other.code == code("journal_broken")


# -- the confirmation window


def test_a_session_whose_client_reports_nothing_gets_only_so_much() -> None:
    house = make_house()
    client = house.client(window_bytes=64 * 1024)
    producer, consumer = client.produce(), client.consume("q", 100_000, 1 << 40)
    other = house.client()
    sender = other.produce(producer=b"q" * 16)
    client.deaf = True
    for _ in range(40):
        other.put(sender, bytes(10_000))
    held = house.queue().counts.unacked
    assert 60_000 <= held * 10_000 <= 90_000
    assert house.queue().counts.ready == 40 - held
    # A report wakes it up.
    session = house.sessions.by_number[1]
    client.deaf = False
    client.incoming.last = session.stream.outgoing.last
    client.send(FrameType.RECEIVED)
    assert house.queue().counts.unacked > held
    assert (producer, consumer) == (1, 2)


def test_a_consumer_that_joins_while_its_session_can_take_no_more_waits_too() -> None:
    house = make_house()
    client = house.client(window_bytes=64 * 1024)
    first = client.consume("a", 100, 1 << 40)
    other = house.client()
    sender = other.produce("a", b"q" * 16)
    client.mute = True
    for _ in range(10):
        other.put(sender, bytes(20_000))
    other.put(other.produce("b", b"r" * 16), b"x")
    second = client.consume("b", 10)
    assert client.got(first) and client.got(second) == []
    assert house.queue("b").counts.ready == 1
    client.mute = False
    for _ in range(3):
        # Queue "a" takes its part of each window.
        client.send(FrameType.RECEIVED)
    assert client.bodies(second) == [b"x"]


def test_a_client_that_sends_much_and_hears_nothing_is_told_what_has_arrived() -> None:
    house = make_house()
    client = house.client(window_bytes=64 * 1024)
    producer = client.produce()
    house.core.closing.begin("nothing is confirmed")
    client.put(producer, bytes(20_000))
    assert client.all(FrameType.RECEIVED)[-1].received == client.outgoing.last


def test_a_report_of_more_than_was_said_breaks_the_protocol() -> None:
    house = make_house()
    client, _, _ = opened(house)
    client.incoming.last = 10**6
    client.send(FrameType.RECEIVED)
    assert broken_by(client) == "bad_number"


def test_a_ping_is_answered() -> None:
    house = make_house()
    client, _, _ = opened(house)
    client.send(FrameType.PING)
    assert len(client.all(FrameType.PONG)) == 1
    client.send(FrameType.PONG)
    client.link.send(Frame(FrameType.PING, number=3))
    client.link.flush()
    assert broken_by(client) == "bad_number"


@pytest.mark.parametrize("number", [0, 1, 3, 99])
def test_frames_are_numbered_without_gaps(number: int) -> None:
    house = make_house()
    client = house.client()
    client.produce()
    client.link.send(Frame(FrameType.CALL, header=Call(operation="flush").encode(), first=9, number=number))
    client.link.flush()
    assert broken_by(client) == "bad_number"


@pytest.mark.parametrize("frame_type", [FrameType.DELIVER, FrameType.CREDIT, FrameType.WELCOME, FrameType.HELLO])
def test_frames_of_the_other_side_are_illegal(frame_type: FrameType) -> None:
    house = make_house()
    client, _, _ = opened(house)
    client.send(frame_type)
    assert broken_by(client) == "illegal_frame"


def test_a_settlement_for_nobody_or_of_nothing_breaks_the_protocol() -> None:
    house = make_house()
    client, producer, _ = opened(house)
    client.settle(producer, (1, 1))
    assert broken_by(client) == "bad_channel"
    other = house.client()
    other.settle(other.consume())
    assert broken_by(other) == "bad_table"


def test_returned_tags_that_are_not_out_break_the_protocol() -> None:
    house = make_house()
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    client.settle(consumer, (1, 1), (1, 1), flags=FLAG_RETURN)
    assert broken_by(client) == "bad_tag"
    assert (house.queue().counts.ready, house.queue().counts.unacked) == (1, 0)


def test_whoever_waits_for_a_message_hears_of_it_before_its_sender_hears_of_the_confirm() -> None:
    house = make_house()
    sender, receiver = house.client(), house.client()
    producer = sender.produce()
    receiver.consume()
    said: list[FrameType] = []
    for client in (sender, receiver):
        hear = client.received

        def note(frames: list[Frame], hear: Callable[[list[Frame]], None] = hear) -> None:
            said.extend(frame.type for frame in frames)
            hear(frames)

        client.receiver.frames = note
    sender.put(producer, b"x")
    assert said == [FrameType.DELIVER, FrameType.CONFIRM]
