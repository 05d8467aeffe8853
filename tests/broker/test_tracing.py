"""Where a message is: in every state that it can have on its way through a node."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.broker.management._route_operations import trace
from meshq.errors import SettingsError
from meshq.ids import MessageId
from meshq.selector import parse_filter
from meshq.settings import AddressSettings
from meshq.wire import (
    FLAG_REJECT,
    FLAG_RETURN,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Envelope,
    encode_map,
)
from tests.broker.kit import FakeLog, House, make_house
from tests.broker.test_access import client_of, house_with, outcome

PRODUCER = b"tracer----------"


def traced(house: House, number: int, producer: bytes = PRODUCER) -> dict[str, Any]:
    """What is said of a message, in as many steps as it takes."""
    *steps, last = trace(house.core, str(MessageId(producer, number)))
    assert steps == [None] * len(steps) and last is not None
    return last


def seen(house: House, number: int) -> list[tuple[str, str]]:
    return [(row["queue"], row["state"]) for row in traced(house, number)["sightings"]]


def test_a_message_is_followed_through_its_states() -> None:
    settings = {"q": AddressSettings(dead_letter_address="dead", max_delivery_attempts=3)}
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    channel = client.produce("q", PRODUCER)
    house.auto = False
    client.put(channel, b"1", b"2", b"3")
    assert seen(house, 2) == [("q", "storing")]
    house.rest()
    house.auto = True
    assert seen(house, 2) == [("q", "ready")]
    consumer = client.consume("q")
    (row,) = traced(house, 2)["sightings"]
    assert (row["state"], row["session"], row["peer"], row["sequence"], row["deliveries"]) == (
        "delivering", client.attached.session, "client", 2, 0,
    )  # fmt: skip
    client.settle(consumer, (1, 1))
    assert seen(house, 1) == [] and traced(house, 1)["accepted"]
    client.settle(consumer, (2, 2), flags=FLAG_REJECT)
    (row,) = traced(house, 2)["sightings"]
    assert (row["queue"], row["state"]) == ("dead", "ready")
    assert (row["origin_address"], row["origin_queue"], row["origin_reason"]) == ("q", "q", "rejected")
    assert not traced(house, 4)["accepted"] and not traced(house, 2, b"x" * 16)["accepted"]


def test_what_waits_for_its_time_is_found() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(redelivery_delay=10)})
    client = house.client()
    channel = client.produce("q", PRODUCER)
    late = Envelope(KIND_PLAIN | KIND_HEADERS | KIND_CONTROL, b"", encode_map({"d": 5_000}), b"")
    client.put(channel, b"1", envelopes=[late])
    assert seen(house, 1) == [("q", "scheduled")]
    client.put(channel, b"2")
    consumer = client.consume("q")
    client.settle(consumer, (1, 1), flags=FLAG_RETURN)
    (row,) = traced(house, 2)["sightings"]
    assert (row["state"], row["deliveries"]) == ("delayed", 1)


def test_each_queue_that_has_it_is_named_and_none_that_has_another_part_of_the_run() -> None:
    house = make_house(FakeLog())
    for name, address, routing in (
        ("n1", "news", "multicast"), ("n2", "news", "multicast"), ("w1", "work", "anycast"), ("w2", "work", "anycast"),
    ):  # fmt: skip
        house.core.definitions.create_queue(name, address=address, routing=routing, durable=True)
    client = house.client()
    client.put(client.produce("news", PRODUCER), b"1", b"2")
    client.put(client.produce("work", b"other-----------"), *[b"%d" % number for number in range(6)])
    assert seen(house, 2) == [("n1", "ready"), ("n2", "ready")]
    holders = [traced(house, number, b"other-----------")["sightings"] for number in range(1, 7)]
    assert [[row["queue"] for row in rows] for rows in holders] == [["w1"], ["w2"]] * 3


def test_what_filters_have_taken_out_of_a_run_is_not_found_with_the_rest() -> None:
    house = make_house(FakeLog())
    for name in ("even", "odd"):
        filter = parse_filter(f"kind = '{name}'")
        house.core.definitions.create_queue(name, address="n", routing="multicast", durable=True, filter=filter)
    client = house.client()
    kinds = [encode_map({"kind": ("odd", "even")[number % 2]}) for number in range(6)]
    envelopes = [Envelope(KIND_PLAIN | KIND_PROPERTIES, b"", b"", kind) for kind in kinds]
    client.put(client.produce("n", PRODUCER), *[b"x"] * 6, envelopes=envelopes)
    assert [seen(house, number) for number in range(1, 7)] == [[("odd", "ready")], [("even", "ready")]] * 3


def test_the_search_goes_in_steps_and_survives_what_happens_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.broker.settlement._tracing._STEP_RUNS", 2)
    house = make_house(FakeLog())
    client = house.client()
    channel = client.produce("q", PRODUCER)
    for number in range(9):
        client.put(channel, b"%d" % number)
    client.put(client.produce("r", b"other-----------"), b"x")
    steps = trace(house.core, str(MessageId(PRODUCER, 9)))
    assert next(steps) is None
    client.call("purge_queue", name="q")
    client.call("delete_queue", name="r")
    *rest, last = steps
    assert rest.count(None) == len(rest) and last == {"accepted": True, "sightings": [], "more": False}
    assert len(list(trace(house.core, str(MessageId(PRODUCER, 9))))) == 1


@pytest.mark.parametrize("text", ["", "7", "ab-1", "zz" * 16 + "-1", "00" * 16, "00" * 16 + "-x", "00" * 16 + "- 1"])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="message_id="):
        list(trace(make_house().core, text))


def test_only_who_manages_the_node_may_ask() -> None:
    house = house_with("q")
    reader, boss = client_of(house, "reader"), client_of(house, "boss")
    text = str(MessageId(PRODUCER, 1))
    reader.call("trace", message_id=text)
    assert "'manage' at 'activemq.management'" in outcome(reader)
    assert boss.call("trace", message_id=text) == {"accepted": False, "more": False}
