"""What a client may ask of a node by name."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.broker.management._management import answer_call
from meshq.errors import UsageError
from meshq.wire import BY_NAME, FLAG_RETURN, Answer, Call, Consume, FrameType, header_of
from tests.broker.kit import FakeLog, make_house


def code(name: str) -> int:
    return BY_NAME[name].number


def test_administration() -> None:
    house = make_house(FakeLog())
    client = house.client()
    assert client.call("create_address", name="news", routing="multicast") == {"name": "news", "routing": "multicast"}
    made = client.call("create_queue", name="mine", address="news", routing="multicast", durable=False)
    assert made == {"name": "mine", "address": "news"}
    assert client.call("create_queue", name="work") == {"name": "work", "address": "work"}
    assert client.call("queues") == {"queue0": "mine", "queue1": "work", "more": False}
    assert client.call("queues", after="mine") == {"queue0": "work", "more": False}
    client.put(client.produce("work"), b"1", b"2")
    assert client.call("queue", name="work") == {
        "name": "work", "address": "work", "routing": "anycast", "durable": True, "paused": False, "ready": 2,
        "temporary": False, "subscription": "", "filter": "", "delivering": 0,
        "dropped": 0, "paged": 0, "paged_bytes": 0,
        "added": 2, "acknowledged": 0, "rejected": 0, "purged": 0, "redelivered": 0, "consumers": 0,
        "scheduled": 0, "delayed": 0, "expired": 0, "dead_lettered": 0, "moved": 0, "redistributed": 0,
        "groups": 0, "replaced": 0,
        "last_sequence": 2,
        "number": 2,
    }  # fmt: skip
    assert client.call("purge_queue", name="work") == {"removed": 2}
    assert client.call("delete_queue", name="work") == {"removed": 0}
    assert client.call("flush") == {}
    assert client.call("queues") == {"queue0": "mine", "more": False}


@pytest.mark.parametrize(
    ("operation", "arguments", "refusal"),
    [
        ("dance", {}, "unknown_operation"),
        ("queue", {"name": "nowhere"}, "not_found"),
        ("purge_queue", {"name": "nowhere"}, "not_found"),
        ("delete_queue", {"name": "nowhere"}, "not_found"),
        ("pause_queue", {"name": "nowhere"}, "not_found"),
        ("resume_queue", {"name": "nowhere"}, "not_found"),
        ("pause_queue", {"name": "$meshq.x"}, "usage"),
        ("queue", {}, "usage"),
        ("queue", {"name": 7}, "usage"),
        ("queue", {"name": "q", "more": 1}, "usage"),
        ("create_queue", {"name": "x", "durable": 1}, "usage"),
        ("create_queue", {"name": "x", "routing": "unicast"}, "usage"),
        ("create_queue", {"name": "q", "routing": "multicast"}, "usage"),
        ("create_queue", {"name": "q", "address": "other"}, "usage"),
        ("create_queue", {"name": "a::b"}, "usage"),
        ("create_address", {"name": "q", "routing": "multicast"}, "usage"),
        ("create_address", {"name": ""}, "usage"),
    ],
)
def test_calls_that_make_no_sense_are_answered_so_and_the_session_goes_on(
    operation: str, arguments: dict[str, Any], refusal: str
) -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    before = house.log.last
    client.call(operation, **arguments)
    assert client.code == code(refusal)
    assert header_of(client.last(FrameType.ANSWER), Answer).text
    assert house.log.last == before and list(house.core.router.queues) == ["q"]
    client.put(producer, b"1")
    assert house.queue().counts.added == 1


def test_a_paused_queue_takes_messages_and_gives_none_until_it_is_resumed() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer, consumer = client.produce(), client.consume(window=2)
    client.put(producer, b"1", b"2", b"3")
    assert client.bodies(consumer) == [b"1", b"2"]
    for _ in range(2):
        assert client.call("pause_queue", name="q") == {}
    client.put(producer, b"4")
    client.settle(consumer, (1, 1))
    client.settle(consumer, (2, 2), flags=FLAG_RETURN)
    late = client.consume()
    assert (client.bodies(consumer), client.bodies(late)) == ([b"1", b"2"], [])
    found = client.call("queue", name="q")
    assert found is not None and (found["paused"], found["ready"], found["delivering"]) == (True, 3, 0)
    house.check()
    for _ in range(2):
        assert client.call("resume_queue", name="q") == {}
    assert sorted(client.bodies(consumer) + client.bodies(late)) == [b"1", b"2", b"2", b"3", b"4"]
    house.check()


def test_a_queue_that_is_paused_while_it_waits_for_the_disk_gives_nothing_afterwards() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), b"1")
    house.auto = False
    consumer = client.consume()
    client.call("pause_queue", name="q")
    house.log.sync()
    assert client.bodies(consumer) == []
    client.call("resume_queue", name="q")
    house.log.sync()
    assert client.bodies(consumer) == [b"1"]


def test_a_paused_queue_whose_filters_had_not_seen_everything_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 1)
    house = make_house()
    client = house.client()
    unfinished: list[int] = []
    house.host.wake = lambda: unfinished.append(1)
    producer = client.produce()
    for number in range(3):
        client.put(producer, b"%d" % number)
    client.channels += 1
    header = Consume(queue="q", window=10, window_bytes=1 << 20, filter="size > 5")
    client.request(FrameType.CONSUME, header, channel=client.channels)
    assert unfinished
    client.call("pause_queue", name="q")
    house.core.resume()
    client.put(producer, b"longer")
    client.call("resume_queue", name="q")
    for _ in range(5):
        house.core.resume()
    assert client.bodies(client.channels) == [b"longer"]


def test_a_call_whose_arguments_are_no_pairs_breaks_the_protocol() -> None:
    house = make_house()
    client = house.client()
    client.send(FrameType.CALL, Call(operation="queue", arguments=("name",)), first=1)
    assert client.good_bye().code == code("bad_header")
    assert house.sessions.by_number == {}


def test_what_an_operation_has_no_argument_for_is_named() -> None:
    house = make_house()
    with pytest.raises(UsageError, match="queues has no argument 'x'; known: after"):
        answer_call(house.core, "queues", {"x": 1})


def test_an_answer_waits_until_what_was_done_is_on_disk() -> None:
    house = make_house(FakeLog())
    client = house.client()
    house.auto = False
    assert client.call("create_queue", name="x") is None
    assert client.call("flush") is None
    house.log.sync()
    assert [frame.first for frame in client.all(FrameType.ANSWER)] == [1, 2]


def test_many_queues_are_listed_in_parts() -> None:
    house = make_house()
    client = house.client()
    names = sorted(f"{number:03}-{'x' * 400}" for number in range(20))
    for name in names:
        client.call("create_queue", name=name)
    found: list[str] = []
    more, after = True, ""
    while more:
        part = client.call("queues", after=after)
        assert part is not None
        more = part.pop("more")
        found += part.values()
        after = found[-1]
    assert found == names
