"""What is said of a message's way is what placing then does: beside a plain comparison of the two."""

from __future__ import annotations

import random
from typing import Any

import pytest

from meshq.broker import RemoteBinding
from meshq.broker.management._management import answer_call
from meshq.errors import SettingsError, UsageError
from meshq.permissions import Permissions
from meshq.selector import parse_filter
from meshq.settings import AddressSettings, Security
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import FakeLog, House, make_core, make_house
from tests.broker.test_access import client_of, house_with, outcome

Rows = list[dict[str, Any]]


def explained(house: House, address: str, properties: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    values = answer_call(house.core, "explain_route", {"address": address, "properties": properties, **about})
    assert not isinstance(values, dict)
    found = next(values)
    assert isinstance(found, dict)
    return found


def gets(rows: Rows, kind: str = "queue") -> dict[str, str]:
    return {row["name"]: row["gets"] for row in rows if row["kind"] == kind}


def queue(house: House, name: str, address: str, routing: str = "multicast", filter: str = "") -> None:
    condition = parse_filter(filter) if filter else None
    house.core.definitions.create_queue(name, address=address, routing=routing, durable=False, filter=condition)


def divert(house: House, name: str, start: str, end: str, filter: str = "", exclusive: bool = False) -> None:
    condition = parse_filter(filter) if filter else None
    house.core.definitions.diverts.create(
        name, address=start, forwarding_address=end, filter=condition, exclusive=exclusive
    )


def test_each_queue_of_a_multicast_address_is_told_of_with_its_filter() -> None:
    house = make_house()
    queue(house, "all", "news")
    queue(house, "emea", "news", filter="region = 'emea'")
    values = explained(house, "news", {"region": "emea"})
    assert gets(values["steps"]) == {"all": "yes", "emea": "yes"}
    values = explained(house, "news", {"region": "us"})
    assert gets(values["steps"]) == {"all": "yes", "emea": "no"}
    assert values["steps"][1]["why"] == "its filter does not accept the message"
    values = explained(house, "news")
    assert gets(values["steps"]) == {"all": "yes", "emea": "maybe"}
    assert values["steps"][1]["why"] == "if its filter accepts the message"
    assert (values["routing"], values["exists"], values["creates"], values["waits"]) == ("multicast", True, False, "")


def test_of_several_anycast_queues_one_gets_it_and_the_only_one_surely() -> None:
    house = make_house()
    queue(house, "w1", "work", "anycast")
    queue(house, "w2", "work", "anycast", filter="size >= 0 AND kind = 'b'")
    assert gets(explained(house, "work", {"kind": "b"})["steps"]) == {"w1": "maybe", "w2": "maybe"}
    assert gets(explained(house, "work", {"kind": "a"})["steps"]) == {"w1": "yes", "w2": "no"}
    assert gets(explained(house, "work::w2", {"kind": "a"})["steps"]) == {"w2": "no"}
    assert gets(explained(house, "work::w2", {"kind": "b"})["steps"]) == {"w2": "yes"}


def test_diverts_are_followed_and_exclusive_ones_take_away() -> None:
    house = make_house()
    for name in ("a", "b", "c"):
        queue(house, name, name)
    divert(house, "copy", "a", "b")
    divert(house, "dear", "a", "c", filter="price > 100", exclusive=True)
    for properties, expected in (
        ({"price": 200}, {"a": "no", "b": "yes", "c": "yes"}),
        ({"price": 1}, {"a": "yes", "b": "yes"}),
        (None, {"a": "maybe", "b": "yes", "c": "maybe"}),
    ):
        values = explained(house, "a", properties)
        assert gets(values["steps"]) == expected
    assert gets(explained(house, "a", {"price": 200})["steps"], "divert") == {"copy": "yes", "dear": "yes"}
    (row,) = [row for row in explained(house, "a", {"price": 200})["steps"] if row["name"] == "a"]
    assert row["why"] == "the divert 'dear' takes it away"


@pytest.mark.parametrize("seed", range(30))
def test_what_is_said_is_what_is_done(seed: int) -> None:
    rng = random.Random(seed)
    house = make_house()
    names = ["a", "b", "c", "d"]
    for name in names:
        routing = rng.choice(["anycast", "multicast"])
        for number in range(rng.randint(0, 3)):
            queue(house, f"{name}{number}", name, routing, rng.choice(["", "x > 5", "x < 3", "y IS NULL"]))
    for number in range(rng.randint(0, 5)):
        start, end = sorted(rng.sample(names, 2))
        if end in house.core.router.addresses:
            divert(house, f"d{number}", start, end, rng.choice(["", "x > 4"]), rng.random() < 0.4)
    client = house.client()
    for index, start in enumerate(name for name in names if name in house.core.router.addresses):
        properties = {"x": rng.randint(0, 9)}
        said = gets(explained(house, start, properties)["steps"])
        before = {one.name: one.counts.added for one in house.core.router.queues.values()}
        channel = client.produce(start, bytes([index + 1]) * 16)
        envelope = Envelope(KIND_PLAIN | KIND_PROPERTIES, b"", b"", encode_map(properties))
        client.put(channel, b"x", envelopes=[envelope])
        got = {one.name for one in house.core.router.queues.values() if one.counts.added > before.get(one.name, 0)}
        assert {name for name, answer in said.items() if answer == "yes"} <= got
        assert got <= {name for name, answer in said.items() if answer != "no"}
        for row in explained(house, start, properties)["steps"]:
            if "in turn" in row["why"]:
                others = [one for one in said if one.startswith(row["address"])]
                assert sum(one in got for one in others) == 1


def test_queues_of_other_nodes_are_told_of_by_the_rules_of_their_link() -> None:
    house = make_house()
    queue(house, "work", "work", "anycast")
    forward = house.core.definitions.forward_queue("$meshq.sf.b")

    def bind(mode: str, consumers: int, filters: tuple[str, ...] = ()) -> None:
        binding = RemoteBinding(
            forward, mode, 7, "work", "work", "anycast", consumers, tuple(map(parse_filter, filters))
        )
        house.core.router.bind(b"b", binding)

    def said(properties: dict[str, Any] | None = None) -> tuple[str, str]:
        rows = explained(house, "work", properties)["steps"]
        (remote,) = [row for row in rows if row["kind"] == "remote"]
        assert remote["via"] == "$meshq.sf.b"
        return gets(rows)["work"], remote["gets"]

    bind("on_demand", 0)
    assert said() == ("yes", "no")
    bind("on_demand", 1)
    assert said() == ("no", "yes")
    bind("on_demand", 1, ("x = 1",))
    assert said({"x": 1}) == ("no", "yes")
    assert said({"x": 2}) == ("yes", "no")
    bind("strict", 0)
    assert said() == ("maybe", "maybe")


def test_what_is_not_there_says_what_first_use_would_make() -> None:
    settings = {"#": AddressSettings(default_routing="multicast"), "no.#": AddressSettings(auto_create_queues=False)}
    house = make_house(settings=settings)
    values = explained(house, "new")
    assert (values["exists"], values["creates"], values["routing"], values["steps"]) == (False, True, "multicast", [])
    assert explained(house, "no.new")["creates"] is False
    assert house.core.router.addresses == {}


def test_it_says_whether_a_user_may_and_who_may_ask() -> None:
    house = house_with("q")
    assert [explained(house, "q", user=user)["permitted"] for user in ("writer", "reader", "nobody")] == [
        True,
        False,
        False,
    ]
    assert explained(house, "new", user="writer")["permitted"] is False
    assert explained(house, "new", user="boss")["permitted"] is True
    assert explained(house, "q")["permitted"] is True
    reader, boss = client_of(house, "reader"), client_of(house, "boss")
    reader.call("explain_route", address="q")
    assert "'manage' at 'q'" in outcome(reader)
    assert (boss.call("explain_route", address="q") or {})["permitted"] is True


def test_where_one_may_not_look_it_is_said_that_it_comes_there_and_nothing_more() -> None:
    security = Security(
        users={"app": "x"}, roles={"app": {"r"}}, permissions={"mine": Permissions(manage={"r"}), "#": Permissions()}
    )
    house = House(make_core(FakeLog(), security=security))
    queue(house, "m", "mine")
    for number in range(3):
        queue(house, f"hidden {number}", "theirs", filter=f"secret = {number}")
    divert(house, "there", "mine", "theirs")
    divert(house, "hidden", "theirs", "elsewhere")
    client = client_of(house, "app")
    values = client.call("explain_route", address="mine", properties=encode_map({"secret": 1}))
    assert values is not None and "hidden" not in str(values) and "elsewhere" not in str(values)
    rows = [(values[f"kind{row}"], values[f"name{row}"], values[f"gets{row}"]) for row in range(3)]
    assert rows == [("divert", "there", "yes"), ("queue", "m", "yes"), ("queue", "", "maybe")]
    assert "kind3" not in values
    # The seventh is the queue that the last divert would make.
    assert [row["name"] for row in explained(house, "mine", {"secret": 1})["steps"]][-2:] == ["hidden 2", "elsewhere"]


def test_it_says_why_senders_wait() -> None:
    core = make_core(FakeLog())
    house = House(core)
    queue(house, "q", "q")
    core.memory.blocked = True
    assert explained(house, "q")["waits"] == "the disk is full"
    core.memory.blocked = False
    core.memory.used_bytes = core.memory.limit_bytes
    assert explained(house, "q")["waits"] == "the broker's memory is full"
    core.memory.used_bytes = 0


@pytest.mark.parametrize(
    "about",
    [
        *({"properties": {"a": float("nan")}}, {"headers": {"x": 1}}),
        *({"properties": b"\xc1"}, {"properties": {}, "priority": 10}),
    ],
)
def test_what_cannot_be_a_message_is_refused(about: dict[str, Any]) -> None:
    house = make_house()
    with pytest.raises((SettingsError, UsageError)):
        answer_call(house.core, "explain_route", {"address": "q", **about})


def test_many_queues_come_in_pages() -> None:
    house = make_house()
    for number in range(100):
        queue(house, f"queue-{number:03}", "news")
    rows: Rows = []
    more = True
    while more:
        values = explained(house, "news", after=len(rows))
        assert 0 < len(values["steps"]) < 40
        rows += values["steps"]
        more = values["more"]
    assert [row["name"] for row in rows] == [f"queue-{number:03}" for number in range(100)]
