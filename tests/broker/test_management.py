"""What a client may ask of a node by name."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.broker._management import answer_call
from meshq.errors import UsageError
from meshq.wire import BY_NAME, Answer, Call, FrameType, header_of
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
        "name": "work", "address": "work", "routing": "anycast", "durable": True, "ready": 2, "delivering": 0,
        "added": 2, "acknowledged": 0, "rejected": 0, "purged": 0, "redelivered": 0, "consumers": 0,
        "scheduled": 0, "delayed": 0, "expired": 0, "dead_lettered": 0, "moved": 0,
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
    assert house.queue().added == 1


def test_a_call_whose_arguments_are_no_pairs_breaks_the_protocol() -> None:
    house = make_house()
    client = house.client()
    client.send(FrameType.CALL, Call(operation="queue", arguments=("name",)), first=1)
    assert client.good_bye().code == code("bad_header")
    assert house.core.sessions == {}


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
