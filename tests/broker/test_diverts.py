"""Diverts: where messages go that are sent to an address, in one record, and over restarts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.broker.catalog._diverts import DivertRule, Diverts
from meshq.errors import NotFoundError, UsageError
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, Envelope
from tests.broker.kit import PRODUCER, FakeLog, House, RawClient, make_core, make_house, with_ids


def again(house: House, last: int | None = None) -> House:
    return House(make_core(house.log.after_crash(), records=house.log.recovered(last)))


def divert(client: RawClient, name: str, address: str, forwarding_address: str, **about: Any) -> None:
    client.call("create_divert", name=name, address=address, forwarding_address=forwarding_address, **about)


def contents(house: House) -> dict[str, list[bytes]]:
    """What is in every queue that has something."""
    client = house.client()
    channels = {name: client.consume(name) for name in list(house.core.router.queues)}
    for _ in range(4):
        # What is less urgent waits until it is on disk that the more urgent may have been delivered.
        house.log.sync()
    found = {name: client.bodies(channel) for name, channel in channels.items()}
    return {name: bodies for name, bodies in found.items() if bodies}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_what_matches_goes_there_too_or_only_there(exclusive: bool, crash: bool) -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "long", "orders", "audit", filter="size >= 3", exclusive=exclusive)
    if crash:
        house = again(house)
        client = house.client()
    channel = client.produce("orders")
    client.put(channel, b"1", b"long", b"2", b"longer")
    client.put(channel, b"long again", durable=False)
    here = [b"1", b"2"] if exclusive else [b"1", b"long", b"2", b"longer", b"long again"]
    assert contents(house) == {"orders": here, "audit": [b"long", b"longer", b"long again"]}
    house.check()
    house = again(house)
    assert contents(house) == {
        "orders": [body for body in here if body != b"long again"],
        "audit": [b"long", b"longer"],
    }


def test_no_crash_comes_between_the_copies() -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "d", "orders", "audit")
    channel = client.produce("orders")
    client.put(channel, b"0")
    house.auto = False
    before = house.log.last
    client.put(channel, b"1", b"2")
    for last in range(before, house.log.last + 1):
        found = contents(again(house, last))
        assert found["orders"] == found["audit"]


def test_a_chain_is_followed_and_each_address_gets_a_message_once() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name, there in (("news", "multicast"), ("end", "anycast")):
        client.call("create_address", name=name, routing=there)
    for name in ("n1", "n2"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    divert(client, "1", "a", "b")
    divert(client, "2", "a", "c", exclusive=True)
    divert(client, "3", "b", "end", filter="size > 1")
    divert(client, "4", "c", "end", exclusive=True)
    divert(client, "5", "end", "news")
    client.put(client.produce("a"), b"1", b"22")
    got = [b"1", b"22"]
    assert contents(house) == {"b": got, "end": got, "n1": got, "n2": got}
    client.put(client.produce("b", PRODUCER[::-1]), b"1", b"33")
    assert contents(again(house)) == {
        "b": [*got, b"1", b"33"], "end": [*got, b"33"], "n1": [*got, b"33"], "n2": [*got, b"33"],
    }  # fmt: skip
    assert house.core.ingress.unrouted == 0


def test_a_queue_is_sent_to_by_its_name_without_any_divert_and_repeats_are_left_out() -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "d", "orders", "audit")
    client.put(client.produce("orders"), b"1", b"2", envelopes=with_ids("a", "b"))
    client.put(client.produce("orders", PRODUCER[::-1]), b"2", b"3", envelopes=with_ids("b", "c"))
    client.put(client.produce("orders::orders", b"a third producer"), b"4")
    assert contents(house) == {"orders": [b"1", b"2", b"3", b"4"], "audit": [b"1", b"2", b"3"]}


def test_what_is_diverted_to_where_nobody_is_is_unrouted() -> None:
    settings = {"closed": AddressSettings(auto_create_queues=False), "m": AddressSettings(default_routing="multicast")}
    house = House(make_core(FakeLog(), settings=settings))
    client = house.client()
    divert(client, "1", "a", "closed", exclusive=True)
    divert(client, "2", "b", "m", exclusive=True)
    divert(client, "3", "c", "closed")
    for number, address in enumerate("abc"):
        client.put(client.produce(address, bytes([number + 1]) * 16), b"x")
    assert contents(house) == {"c": [b"x"]} and house.core.ingress.unrouted == 2
    assert len(client.confirmed) == 3


def test_messages_with_priorities_are_diverted_in_their_order() -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "d", "orders", "audit", filter="priority > 2")
    envelopes = [Envelope(priority << 8, b"", b"", b"") for priority in (1, 9, 3)]
    client.put(client.produce("orders"), b"1", b"9", b"3", envelopes=envelopes)
    for found in (again(house), again(house)):
        assert contents(found) == {"orders": [b"9", b"3", b"1"], "audit": [b"9", b"3"]}


def test_a_loop_is_refused_and_named_and_nothing_is_made() -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "1", "a", "b")
    divert(client, "2", "b", "c")
    divert(client, "3", "a", "c")
    before = house.log.last
    for address, there, loop in (("c", "a", "c -> a -> b -> c"), ("b", "a", "b -> a -> b"), ("x", "x", "x -> x")):
        with pytest.raises(UsageError, match=f"would close a loop: {loop}"):
            house.core.definitions.diverts.create(
                "4", address=address, forwarding_address=there, filter=None, exclusive=False
            )
    divert(client, "4", "c", "a")
    assert client.code == BY_NAME["usage"].number
    assert house.log.last == before and list(house.core.router.diverts.by_name) == ["1", "2", "3"]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), max_size=12))
def test_a_divert_is_refused_if_and_only_if_it_leads_back(edges: list[tuple[str, str]]) -> None:
    diverts = Diverts({})
    reaches = {(name, name) for name in "abcde"}
    for number, (start, end) in enumerate(edges):
        if (end, start) in reaches:
            with pytest.raises(UsageError):
                diverts.check_loop(start, end)
            continue
        diverts.check_loop(start, end)
        diverts.add(DivertRule(name=str(number), address=start, forwarding_address=end, filter=None, exclusive=False))
        reaches |= {(a, d) for (a, b), (c, d) in itertools.product(reaches, reaches) if b == start and c == end}
    for name in "abcde":
        order = diverts.order(name)
        assert set(order) == {there for here, there in reaches if here == name} and order[0] == name
        assert len(set(order)) == len(order)
        for rule in diverts.by_name.values():
            if rule.address in order:
                assert order.index(rule.address) < order.index(rule.forwarding_address)


def test_diverts_are_listed_kept_over_a_crash_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(FakeLog())
    client = house.client()
    divert(client, "b", "orders", "audit", filter="n = 1", exclusive=True)
    divert(client, "a", "orders", "copy")
    divert(client, "a", "orders", "copy", filter=None, exclusive=False)
    for about in ({"exclusive": True}, {"filter": "n = 2"}):
        divert(client, "a", "orders", "copy", **about)
        assert client.code == BY_NAME["usage"].number
    divert(client, "a", "orders", "other")
    assert client.code == BY_NAME["usage"].number
    house = again(house)
    client = house.client()
    listed = {
        "name0": "a", "address0": "orders", "forwarding_address0": "copy", "filter0": "", "exclusive0": False,
        "name1": "b", "address1": "orders", "forwarding_address1": "audit", "filter1": "n = 1", "exclusive1": True,
        "more": False,
    }  # fmt: skip
    assert client.call("diverts") == listed
    assert client.call("delete_divert", name="a") == {}
    client.call("delete_divert", name="a")
    assert client.code == BY_NAME["not_found"].number
    client.put(client.produce("orders"), b"1")
    assert contents(house) == {"orders": [b"1"]}
    assert list(again(house).core.router.diverts.by_name) == ["b"]
    with pytest.raises(NotFoundError):
        house.core.definitions.diverts.delete("a")
    monkeypatch.setattr(limits, "DIVERTS_MAX", 1)
    divert(client, "c", "x", "y")
    assert client.code == BY_NAME["usage"].number
    house.log.full = True
    house.core.definitions.diverts.delete("b")
    assert not again(house).core.router.diverts.by_name


@pytest.mark.parametrize(
    ("about", "refusal"),
    [
        ({"name": ""}, "usage"),
        ({"address": "a::b"}, "usage"),
        ({"forwarding_address": "$meshq.x"}, "usage"),
        ({"forwarding_address": "$temporary.x"}, "usage"),
        ({"filter": "a = = 1"}, "bad_filter"),
        ({"exclusive": 1}, "usage"),
    ],
)
def test_what_can_be_no_divert_is_refused(about: dict[str, Any], refusal: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_divert", **{"name": "d", "address": "a", "forwarding_address": "b", **about})
    assert client.code == BY_NAME[refusal].number
    assert not house.core.router.diverts.by_name


def test_many_diverts_are_listed_in_parts() -> None:
    house = make_house()
    client = house.client()
    filled = "x" * 400
    wanted = sorted(f"{number:03}{filled}" for number in range(10))
    for name in wanted:
        divert(client, name, f"a{name}", f"b{name}", filter=f"{filled} = 1")
    found: list[str] = []
    while True:
        part = client.call("diverts", after=found[-1] if found else "")
        assert part is not None
        found += [value for key, value in part.items() if key.startswith("name")]
        if not part["more"]:
            break
    assert found == wanted
