"""What another broker claims is taken only as far as it is allowed, and never ends the broker that hears it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio

from meshq import Client, Consumer, NetworkConnector, Queues, RemoteProtocolError, SettingsError
from meshq.broker.management import _network_demand
from meshq.client import DemandSnapshot, demand_of, kept_queues, network_consumer
from meshq.client.admin._queue_names import names_behind
from meshq.network import _direction, _network_link
from meshq.network._demand_machine import CONSUMERS_MAX, COPIES_MAX, DemandRules, DemandTable, NetworkSubscription
from meshq.network._direction import KEPT_QUEUES_MAX, LEAVING_MAX
from tests.bridge.kit import URL, numbered
from tests.network.kit import consuming, known, quiet, take, to, until, world

A, B = "a" * 32, "b" * 32
ABOUT = {"node_id": B, "store": b"s" * 16, "epoch": b"e"}


def row(address: str, *, ways: str = B, consumers: int = 1, routing: str = "anycast") -> dict[str, Any]:
    """A row of an answer."""
    about = {"address": address, "routing": routing, "filter": "", "priority": 0, "durable": False}
    return {**about, "ways": ways, "consumers": consumers}


def page(*rows: dict[str, Any], more: bool = False, **about: Any) -> dict[str, Any]:
    """An answer with these rows."""
    flat = {f"{name}{at}": value for at, one in enumerate(rows) for name, value in one.items()}
    return {**ABOUT, **flat, "more": more, **about}


def answering(*pages: dict[str, Any], asked: list[int] | None = None) -> Client:
    """A client whose peer answers so, the last answer for ever."""
    left = list(pages)

    async def ask(operation: str, **named: Any) -> dict[str, Any]:
        if asked is not None:
            asked.append(named["after"])
        return left.pop(0) if len(left) > 1 else left[0]

    return cast("Client", SimpleNamespace(_context=SimpleNamespace(ask=ask)))


@pytest.mark.parametrize(
    "about",
    [
        {"node_id": None},
        {"node_id": 7},
        {"node_id": "b"},
        {"node_id": "x" * 32},
        {"store": None},
        {"store": b""},
        {"store": b"s" * 17},
        {"store": "s" * 16},
        {"epoch": None},
        {"epoch": 1},
        {"epoch": b""},
    ],
)
async def test_an_answer_that_does_not_say_whose_it_is_is_refused(about: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="without the id of a broker"):
        await demand_of(answering(page(**about)), A, b"", most=10)
    with pytest.raises(RemoteProtocolError):
        await demand_of(answering(page(row("q"), more=True), page(**about)), A, b"", most=10)


async def test_a_broker_goes_on_whatever_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        monkeypatch.setattr(_network_demand, "epoch_of", lambda rows: 7)
        await made.start("b")
        await made.start("a", lambda: [to("b")])
        connector = made.brokers["a"].network("to-b")
        await until(lambda: "without the id of a broker" in str(connector.bridges()[0].last_error))
        monkeypatch.undo()
        await connector.wait_for(timeout=30)
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(3))
            await take(there, 3)


async def test_names_of_queues_without_an_end_are_read_as_far_as_they_are_bounded() -> None:
    asked: list[str] = []

    async def ask(operation: str, **named: Any) -> dict[str, Any]:
        asked.append(named["after"])
        return {f"queue{at}": f"q{len(asked):04}.{at}" for at in range(4)} | {"more": True}

    client = cast("Client", SimpleNamespace(_context=SimpleNamespace(ask=ask)))
    names, more = await kept_queues(client, A, "$meshq.network.c", most=10)
    assert (len(names), more, len(asked)) == (10, True, 3)
    assert KEPT_QUEUES_MAX == 10_000 > CONSUMERS_MAX and LEAVING_MAX == 100


async def test_a_broker_that_names_other_queues_for_ever_is_asked_ever_more_seldom_and_takes_no_more_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[float] = []

    async def claim(
        client: Client, node_id: str, beginning: str, *, most: int, target_id: str = ""
    ) -> tuple[list[str], bool]:
        looks.append(trio.current_time())
        topics = [f"t{len(looks)}-{at}" for at in range(most)]
        return [f"{topic}::{beginning}{topic}@{node_id}" for topic in topics], True

    opened: list[str] = []

    def open_one(client: Client, address: str, **about: Any) -> Consumer:
        opened.append(address)
        return network_consumer(client, address, **about)

    monkeypatch.setattr(_direction, "network_consumer", open_one)
    monkeypatch.setattr(_direction, "KEPT_QUEUES_MAX", 10)
    monkeypatch.setattr(_direction, "LEAVING_MAX", 3)
    monkeypatch.setattr(_direction, "kept_queues", claim)
    async with world() as made:
        await made.start("b")
        settings = {"retry_interval": 0.5, "retry_interval_multiplier": 2.0, "max_retry_interval": 4}
        await made.start("a", lambda: [to("b", duplex=True, **settings)])
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
        await trio.sleep(20)
        # Two directions, each of which asks for its place, for earlier names, and for all places.
        assert 8 <= len(looks) <= 2 * 3 * 9, looks
        # On the way back none of the topics is known here.
        assert len(looks) / 2 <= len(opened) <= len(looks) / 2 * 3
        assert "network_queues_max" in {getattr(one, "event", "") for one in caplog.records}
        async with consuming(made, "b") as (_, there):
            await known(made, "ab", "q", 1)
            await made.send("a", "q", numbered(3))
            await take(there, 3)


async def test_rows_that_are_none_are_left_out() -> None:
    wrong = [row("q", consumers=0), row("q", consumers=-1), {**row("q"), "ways": 7}, {**row("q"), "priority": "0"}]
    found = await demand_of(answering(page(*wrong, row("r"))), A, b"", most=10)
    assert found is not None
    assert [one["address"] for one in found.rows] == ["r"]


async def test_an_answer_without_an_end_is_read_as_far_as_it_is_bounded() -> None:
    asked: list[int] = []
    found = await demand_of(answering(page(row("q"), row("r"), more=True), asked=asked), A, b"", most=10)
    assert found is not None
    assert (len(found.rows), found.whole) == (10, False)
    assert asked == [0, 2, 4, 6, 8]
    empty = await demand_of(answering(page(row("q"), more=True), page(more=True)), A, b"", most=10)
    assert empty is not None
    assert (len(empty.rows), empty.whole) == (1, True)


def table(*told: NetworkSubscription, **rules: Any) -> DemandTable:
    """A link of A to B, which has said this."""
    made = DemandTable(DemandRules(**{"node_id": A, "network_ttl": 3, "conduit": False, **rules}))
    made.replace(B, told)
    return made


def told(address: str, routing: str = "anycast", **about: Any) -> NetworkSubscription:
    """Demand of B."""
    return NetworkSubscription(**{"address": address, "routing": routing, "ways": ((B,),), **about})


def test_a_number_of_consumers_without_bound_costs_no_more_than_there_may_be() -> None:
    made = table(told("q", consumers=2**62), told("q", filter="x = 1", consumers=2**63 - 1))
    assert len(made.wanted({})) == CONSUMERS_MAX
    assert made.unserved == 2**62 + 2**63 - 1 - CONSUMERS_MAX


def test_a_number_of_subscriptions_of_a_topic_makes_few_copies() -> None:
    claimed = table(told("t", "multicast", consumers=CONSUMERS_MAX), conduit=False)
    assert len(claimed.wanted({})) == COPIES_MAX == 100
    assert claimed.unserved == CONSUMERS_MAX - COPIES_MAX
    other = table(*(told("t", "multicast", filter=f"n = {number}") for number in range(101)), conduit=False)
    assert (len(other.wanted({})), other.unserved) == (101, 0)


def test_one_queue_with_many_consumers_leaves_room_for_the_others() -> None:
    made = table(told("aaa", consumers=CONSUMERS_MAX), told("orders"), told("orders", filter="x = 1", consumers=2))
    wanted = made.wanted({})
    found = [(one.destination.address, one.filter) for one in wanted]
    assert len(found) == CONSUMERS_MAX
    assert (found.count(("orders", "")), found.count(("orders", "x = 1"))) == (1, 2)
    assert made.unserved == 3


@pytest.mark.parametrize(
    ("address", "routing"),
    [
        ("q", "anything"),
        ("$meshq.stage.x", "multicast"),
        ("activemq.notifications", "multicast"),
        ("t::t.sub", "anycast"),
        ("", "anycast"),
        ("a.*", "anycast"),
        ("#", "anycast"),
        ("x" * 513, "anycast"),
        ("$meshq.stage.x", "anycast"),
        ("$temporary.x", "anycast"),
        ("activemq.management", "anycast"),
        ("activemq.notifications", "anycast"),
    ],
)
def test_demand_for_what_is_no_queue_of_a_user_is_left_out_and_counted(address: str, routing: str) -> None:
    made = table(told(address, routing), told("r"))
    assert [one.destination.address for one in made.wanted({})] == ["r"]
    assert dict(made.left_out) == {"not_allowed": 1}


@pytest.mark.parametrize("way", [("zz", B), ("", B), ("C" * 32, B)])
def test_a_way_over_what_is_no_broker_is_none(way: tuple[str, ...]) -> None:
    made = table(told("q", ways=(way,)))
    assert made.wanted({}) == ()
    assert dict(made.left_out) == {"loop": 1}


@pytest.mark.parametrize(
    ("address", "routing"),
    [("SECRET.x", "anycast"), ("SECRET.x", "multicast"), ("SECRET.x::SECRET.x", "anycast"), ("t::t.sub", "anycast")],
)
async def test_a_claim_takes_nothing_that_is_excluded_and_drains_no_subscription(
    monkeypatch: pytest.MonkeyPatch, address: str, routing: str
) -> None:
    async def claim(client: Client, node_id: str, known: bytes, **more: Any) -> DemandSnapshot | None:
        found = await demand_of(client, node_id, known, **more)
        ways = found.node_id if found is not None else ""
        return found and attrs.evolve(found, rows=(row(address, ways=ways, routing=routing),))

    monkeypatch.setattr(_network_link, "demand_of", claim)
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b", excluded=[Queues("SECRET.>")])])
        async with made.here("a") as client:
            await client.send("SECRET.x", b"1")
            await client.create_address("t", routing="multicast")
            await client.create_queue("t.sub", address="t", routing="multicast")
            await client.send("t", b"2")
        await made.brokers["a"].network("to-b").wait_for(timeout=30)
        await quiet()
        assert [await made.count("a", "SECRET.x"), await made.count("a", "t.sub")] == [1, 1]


async def test_a_queue_of_this_name_on_another_address_is_not_forwarded() -> None:
    async with world() as made:
        await made.start("b")
        await made.start("a", lambda: [to("b")])
        async with made.here("a") as client:
            await client.create_address("t", routing="multicast")
            await client.create_queue("q", address="t", routing="multicast")
            await client.send("t", b"2")
        async with consuming(made, "b"):
            connector = made.brokers["a"].network("to-b")
            await until(lambda: "not the queue of its address" in str(connector.bridges()[0].last_error))
            await quiet()
            assert await made.count("a", "q") == 1
            assert await made.count("b", "q") == 0


def test_a_word_that_settings_of_addresses_take_for_a_wildcard_is_no_name() -> None:
    for pattern in ("TRADE.#", "#", "TRADE.#.x"):
        with pytest.raises(SettingsError, match="names without wildcards"):
            NetworkConnector("n", f"static:({URL.format('b')})", statically_included=[Queues(pattern)])


def test_the_settings_show_no_secret() -> None:
    connector = NetworkConnector("n", "static:(tcp://h:1?password=hunter2)")
    assert "hunter2" not in repr(connector.settings)
    assert "tcp://h:1" in repr(NetworkConnector("n", "static:(tcp://h:1)").settings)


@pytest.mark.parametrize("names", [[5], [None], ["b", "a"], ["a", "a"], [""], ["a", 5]])
async def test_names_of_queues_that_are_none_or_do_not_go_on_are_a_breach_of_the_protocol(names: list[Any]) -> None:
    answer = {**{f"queue{at}": one for at, one in enumerate(names)}, "more": True}
    with pytest.raises(RemoteProtocolError, match="about queues"):
        await names_behind(answering(answer)._context.ask, "")


async def test_names_of_queues_are_asked_for_as_long_as_there_are_more() -> None:
    ask = answering({"queue0": "a", "queue1": "b", "more": True}, {"more": False})._context.ask
    assert [await names_behind(ask, ""), await names_behind(ask, "b")] == [(["a", "b"], True), ([], False)]
