"""Management by messages, in raw frames: what is asked, what is answered, and what becomes of nonsense."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshq import limits
from meshq.address import MANAGEMENT, NOTIFICATIONS
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NAME,
    FLAG_DURABLE,
    FLAG_RESENT,
    KIND_HEADERS,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Deliver,
    Envelope,
    FrameType,
    RunBytes,
    RunView,
    decode_map,
    encode_map,
    header_of,
)
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house
from tests.broker.test_access import FORBIDDEN, client_of, house_with, outcome


def request(operation: Any, reply_to: str | None = "answers", correlation: str = "7") -> Envelope:
    headers = {"c": correlation, **({} if reply_to is None else {"r": reply_to})}
    properties = {} if operation is None else {"operation": operation}
    return Envelope(
        KIND_PLAIN | KIND_HEADERS | (KIND_PROPERTIES if properties else 0),
        b"",
        encode_map(headers),
        encode_map(properties) if properties else b"",
    )


class Asker:
    """Somebody who sends requests and reads the answers."""

    def __init__(self, house: House, client: RawClient | None = None, answers: str = "answers") -> None:
        self.house = house
        self.client = client or house.client()
        self.channel = self.client.produce(MANAGEMENT, b"asker-----------")
        reader = house.client()
        self.reader, self.answers = reader, reader.consume(answers)

    def ask(self, operation: Any, body: bytes | None = None, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """The answer's body and its properties."""
        data = json.dumps(arguments).encode() if body is None else body
        before = len(self.heard())
        self.client.put(self.channel, data, envelopes=[request(operation)])
        # The answer takes a number of its queue, which is reserved on disk.
        self.house.rest()
        (answer,) = self.heard()[before:]
        return answer

    def heard(self) -> list[tuple[Any, dict[str, Any]]]:
        found = []
        for frame in self.reader.all(FrameType.DELIVER):
            assert not frame.flags & FLAG_DURABLE
            view = RunView(RunBytes(frame.count, bytes(frame.table), header_of(frame, Deliver).base, frame.body))
            for row in range(frame.count):
                headers = decode_map(view.headers(row), 1 << 16)
                assert headers == {"c": "7", "t": "application/json"}
                found.append((json.loads(view.body(row)), decode_map(view.properties(row), 1 << 16)))
        return found


def test_a_request_is_carried_out_and_answered_when_it_is_durable() -> None:
    house = make_house(FakeLog())
    asker = Asker(house)
    asker.ask("queues")
    house.auto = False
    asker.client.put(asker.channel, b'{"name": "orders"}', envelopes=[request("create_queue")])
    assert "orders" in house.core.router.queues
    assert len(asker.heard()) == 1 == len(asker.client.confirmed)
    house.rest()
    done = {"operation": "create_queue", "outcome": "done", "code": ""}
    assert asker.heard()[1:] == [({"name": "orders", "address": "orders"}, done)]
    assert asker.client.confirmed[1:] == [(asker.channel, 2)]


def test_answers_have_pages_as_lists_of_rows() -> None:
    asker = Asker(make_house(FakeLog()))
    asker.ask("create_divert", name="d", address="a", forwarding_address="b")
    assert asker.ask("queues")[0] == {"queues": [{"queue": "answers"}], "more": False}
    about = {"name": "d", "address": "a", "forwarding_address": "b", "filter": "", "exclusive": False}
    assert asker.ask("diverts")[0] == {"diverts": [about], "more": False}


def test_what_takes_many_steps_is_answered_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_MESSAGES_MAX", 1)
    house = make_house(FakeLog())
    waiting: list[str] = []
    house.host.wake = lambda: waiting.append("more")
    asker = Asker(house)
    for number in range(5):
        asker.client.put(asker_queue(asker), b"%d" % number)
    asker.client.put(asker.channel, b'{"name": "q", "address": "r"}', envelopes=[request("move_messages")])
    assert asker.heard() == []
    while waiting:
        waiting.clear()
        house.core.resume()
        house.rest()
    assert asker.heard()[0][0] == {"moved": 5}


def asker_queue(asker: Asker) -> int:
    """A channel to q, opened once."""
    known = getattr(asker, "queue", None)
    if known is None:
        known = asker.queue = asker.client.produce("q")  # type: ignore[attr-defined]
    return known


def test_for_ever_is_a_word_in_both_directions() -> None:
    asker = Asker(make_house(FakeLog()))
    assert asker.ask("set_address_settings", pattern="q", max_delivery_attempts="inf", redelivery_delay=0.5)[1][
        "outcome"
    ]
    values = asker.ask("address_settings", address="q")[0]
    assert values["max_delivery_attempts"] == values["max_redelivery_delay"] == "inf"
    assert values["redelivery_delay"] == 0.5


@pytest.mark.parametrize(
    ("operation", "body", "code", "says"),
    [
        (None, b"", "usage", "the property 'operation'"),
        (7, b"", "usage", "the property 'operation'"),
        ("dance", b"", "unknown_operation", "'dance'"),
        ("queue", b'{"name": "nowhere"}', "not_found", "nowhere"),
        ("queue", b"", "usage", "lacks its argument 'name'"),
        ("queue", b"{", "usage", "a JSON object"),
        ("queue", b"[]", "usage", "a JSON object"),
        ("queue", b"\xff", "usage", "a JSON object"),
        ("queue", b"[" * 50_000, "usage", "a JSON object"),
        ("queue", b'{"name": NaN}', "usage", "a JSON object"),
        ("queue", b'{"name": "a", "name": "b"}', "usage", "each of them there once"),
        ("queue", b'{"name": ["a"]}', "usage", "a list as 'name'"),
        ("queue", b'{"name": "inf"}', "not_found", "inf"),
        ("queue", b'{"name": "q", "more": 1}', "usage", "no argument 'more'"),
        ("queue", b" " * 70_000, "usage", "70000 bytes; allowed: 65536"),
        ("create_queue", b'{"name": "x", "filter": "a = = 1"}', "bad_filter", "a = = 1"),
        ("pause_queue", b'{"name": "$meshq.x"}', "usage", "the broker's own"),
        ("set_address_settings", b'{"pattern": "\\ud800"}', "usage", "patterns of words"),
        ("remove_address_settings", b'{"pattern": "\\ud800"}', "not_found", "no address settings"),
        ("set_address_settings", b'{"pattern": "q", "default_last_value_key": "\\ud800"}', "usage", "of a property"),
    ],
)
def test_nonsense_is_answered_with_what_is_wrong(operation: Any, body: bytes, code: str, says: str) -> None:
    house = make_house(FakeLog())
    asker = Asker(house)
    values, properties = asker.ask(operation, body)
    assert says in values["error"]
    assert (properties["code"], properties["outcome"]) == (code, "not_done")
    assert list(house.core.router.queues) == ["answers"] and asker.client.confirmed


def test_who_wants_no_answer_or_has_gone_is_not_waited_for() -> None:
    house = make_house(FakeLog(), settings={"gone.#": AddressSettings(auto_create_queues=False)})
    client = house.client()
    channel = client.produce(MANAGEMENT)
    for number, reply_to in enumerate(
        (None, "gone.answers", "$temporary.gone", "activemq.management", "activemq.notifications")
    ):
        client.put(channel, b'{"name": "q%d"}' % number, envelopes=[request("create_queue", reply_to)])
    assert list(house.core.router.queues) == [f"q{number}" for number in range(5)]
    assert client.confirmed[-1] == (channel, 5) and not client.refused()
    assert house.core.ingress.unrouted == 4
    assert not {MANAGEMENT, NOTIFICATIONS} & set(house.core.router.addresses)


def test_a_request_that_comes_again_is_carried_out_once() -> None:
    asker = Asker(make_house(FakeLog()))
    client, channel = asker.client, asker.channel
    asker.ask("create_queue", name="q")
    client.call("delete_queue", name="q")
    client.put(channel, b'{"name": "q"}', envelopes=[request("create_queue")], flags=FLAG_RESENT, first=1)
    assert "q" not in asker.house.core.router.queues and len(asker.heard()) == 1
    assert client.confirmed[-1] == (channel, 1)


def test_requests_need_the_permission_to_manage_and_that_of_the_operation() -> None:
    house = house_with("q", "mine", "answers")
    writer, boss = client_of(house, "writer"), client_of(house, "boss")
    writer.produce(MANAGEMENT)
    assert "'manage' at 'activemq.management'" in outcome(writer)
    asker = Asker(house, boss)
    assert asker.ask("queue", name="q")[1]["outcome"] == "done"
    values, properties = asker.ask("move_messages", name="q", address="other.q")
    assert "'boss' lacks the permission 'send' at 'other.q'" in values["error"]
    assert (properties["code"], properties["outcome"]) == ("forbidden", "not_done")
    # Where the sender may not take the answer, nothing is done.
    boss.put(asker.channel, b'{"name": "q"}', envelopes=[request("delete_queue", "other.mine")])
    assert boss.refused()[-1][2] == FORBIDDEN and "q" in house.core.router.queues


def test_the_address_is_for_requests_and_for_nothing_else() -> None:
    house = House(make_core(FakeLog(), settings={"#": AddressSettings(default_routing="multicast")}))
    client = house.client()
    usage = BY_NAME["usage"].number
    client.produce(f"{MANAGEMENT}::q")
    assert client.code == usage
    client.consume(MANAGEMENT)
    assert client.code == usage
    for operation, about in (
        ("create_address", {"name": MANAGEMENT, "routing": "anycast"}),
        ("create_queue", {"name": MANAGEMENT}),
        ("create_queue", {"name": "q", "address": MANAGEMENT}),
        ("create_divert", {"name": "d", "address": "a", "forwarding_address": MANAGEMENT}),
        ("create_divert", {"name": "d", "address": MANAGEMENT, "forwarding_address": "b"}),
    ):
        client.call(operation, **about)
        assert client.code == usage, operation
    assert house.core.router.addresses == {} == house.core.router.queues


def test_so_many_long_requests_are_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLS_MAX", 3)
    monkeypatch.setattr(limits, "STEP_MESSAGES_MAX", 1)
    house = make_house(FakeLog())
    house.host.wake = lambda: None
    asker = Asker(house)
    for _ in range(3):
        asker.client.put(asker_queue(asker), b"x")
    for _ in range(4):
        asker.client.put(asker.channel, b'{"name": "q", "address": "q"}', envelopes=[request("move_messages")])
    assert [properties["code"] for _, properties in asker.heard()] == ["too_many"]
