"""Filters as a client asks for them: frames in, deliveries out."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.broker.catalog._distribution_plan import filters_of
from meshq.selector import parse_filter
from meshq.wire import (
    BY_NAME,
    KIND_PROPERTIES,
    Answer,
    Consume,
    Envelope,
    Frame,
    FrameType,
    RunBytes,
    RunView,
    decode_map,
    encode_map,
    header_of,
)
from tests.broker.kit import RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.queues import join, leave, make_queue, properties


def consume(client: RawClient, filter: str, queue: str = "q", window: int = 100) -> int:
    """Open a channel for what a filter accepts; returns the channel."""
    client.channels += 1
    header = Consume(queue=queue, window=window, window_bytes=1 << 20, filter=filter)
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client.channels


def found(client: RawClient, channel: int) -> list[Any]:
    """The property of each message that came on a channel."""
    values: list[Any] = []
    for frame in client.all(FrameType.DELIVER):
        if frame.channel == channel:
            values += keys_of(frame)
    return values


def keys_of(frame: Frame) -> list[Any]:
    table = bytes(frame.table)
    view = RunView(RunBytes(frame.count, table, int.from_bytes(table[-4:], "little") - len(frame.body), frame.body))
    return [decode_map(view.properties(row), 1_000)["k"] for row in range(frame.count)]


def put(client: RawClient, channel: int, *keys: int, **options: Any) -> None:
    client.put(channel, *[b"x"] * len(keys), envelopes=[properties({"k": key}) for key in keys], **options)


@pytest.mark.parametrize("lossless", [True, False])
def test_a_session_delivers_what_its_filters_accept(lossless: bool) -> None:
    house = make_house(FakeLog())
    client = house.client(lossless=lossless)
    producer = client.produce()
    put(client, producer, 1, 2, 1, 3)
    ones, threes = consume(client, "k = 1"), consume(client, " k > 2 ")
    put(client, producer, 3, 2, 1)
    assert (found(client, ones), found(client, threes)) == ([1, 1, 1], [3, 3])
    client.settle(ones, (1, 3))
    assert house.queue().counts.acknowledged == 3
    house.check()


def test_a_session_that_is_away_gets_nothing_and_goes_on_when_it_is_back() -> None:
    house = make_house(FakeLog())
    client, other = house.client(), house.client()
    producer = other.produce()
    channel = consume(client, "k = 1")
    put(other, producer, 1)
    client.drop()
    put(other, producer, 1, 2)
    assert house.queue().counts.ready == 2
    client.resume()
    put(other, producer, 1)
    assert found(client, channel) == [1, 1, 1]
    house.check()
    client.close()
    assert (house.queue().counts.ready, house.queue().counts.unacked) == (4, 0)
    house.check()


def test_a_filter_that_is_none_is_refused_and_makes_no_queue() -> None:
    house = make_house()
    client = house.client()
    consume(client, "k = = 1", queue="none")
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    assert answer.code == BY_NAME["bad_filter"].number and "at column 5 " in answer.text
    assert "none" not in house.core.router.queues
    consume(client, "k = " + "(" * 100)
    assert client.code == BY_NAME["bad_filter"].number


def test_a_queue_with_too_many_filters_to_ask_refuses_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERS_SCANNED_MAX", 1)
    house = make_house()
    client = house.client()
    consume(client, "k > 1")
    assert client.code == 0
    consume(client, "k > 2")
    assert client.code == BY_NAME["usage"].number
    assert len(house.queue().roster.consumers) == 1


def test_a_backlog_goes_to_the_filters_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 4)
    house = make_house()
    client = house.client()
    producer = client.produce()
    for _ in range(5):
        put(client, producer, 2, 2, 2, 2)
    put(client, producer, 1)
    asked: list[int] = []
    house.host.wake = lambda: asked.append(len(client.all(FrameType.DELIVER)))
    channel = consume(client, "k = 1")
    for steps in range(1, 6):
        assert len(asked) == steps and found(client, channel) == []
        house.core.resume()
    assert found(client, channel) == [1]
    house.core.resume()
    assert len(asked) == 5
    house.check()


def test_what_nobody_wanted_comes_marked_after_a_crash_and_nothing_is_lost() -> None:
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    producer = client.produce()
    put(client, producer, 1, 2, 1, 2)
    channel = consume(client, "k = 1")
    client.settle(channel, (1, 1))
    log.sync()
    again = make_house(log.after_crash(), records=log.recovered())
    late = again.client()
    twos, ones = consume(late, "k = 2"), consume(late, "k = 1")
    assert (found(late, twos), found(late, ones)) == ([2, 2], [1])
    again.check()


def test_a_queue_says_what_is_wanted_if_everybody_wants_something_in_particular() -> None:
    queue = make_queue()
    assert filters_of(queue) is None
    one = join(queue, number=1, filter="k = 1")
    join(queue, number=2, filter="k > 5")
    join(queue, number=3, filter="k = 1")
    both = (parse_filter("k = 1"), parse_filter("k > 5"))
    assert filters_of(queue) == both
    plain = join(queue, number=4)
    assert filters_of(queue) == ()
    leave(plain)
    leave(one)
    assert filters_of(queue) == both
    leave(queue.roster.consumers[0])
    assert filters_of(queue) == both[:1]
    leave(queue.roster.consumers[0])
    assert filters_of(queue) is None


@pytest.mark.parametrize("text", ["size = 'large'", "size = 'large' AND k = 1", "size > 0 OR size = 'large'"])
def test_a_property_named_like_a_header_is_seen_and_others_have_the_header(text: str) -> None:
    house = make_house()
    client = house.client()
    producer = client.produce()
    named = [{"size": "large", "k": 1}, {"k": 1}, {"other": "size", "k": 1}]
    envelopes = [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map(values)) for values in named]
    client.put(producer, b"one", b"", b"", envelopes=envelopes)
    channel = consume(client, text)
    assert client.bodies(channel) == [b"one"]
