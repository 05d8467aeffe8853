"""What is said of a message's way among nodes is what placing then does: in every mode, at random tables."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshq.broker import RemoteBinding
from meshq.broker.management._management import answer_call
from meshq.selector import parse_filter
from meshq.settings import AddressSettings
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import House, RawClient, make_house

MODES = ("off", "strict", "on_demand", "off_with_redistribution")
FILTERS = ("", "x = 0", "x = 1")
#: A queue here is named by its name, one elsewhere by its link, too.
Row = dict[str, Any]


@attrs.frozen
class Here:
    """A queue of this node."""

    name: str
    #: Its consumers' filters, and its own.
    consumers: tuple[str, ...] = ()
    filter: str = ""


@attrs.frozen
class There:
    """A queue of another node."""

    name: str
    mode: str
    link: str = "b"
    consumers: tuple[str, ...] = ()
    filter: str = ""
    gone: str = ""
    routing: str = ""


NAMES = st.sampled_from(["a", "q0", "q1"])
CONSUMERS = st.lists(st.sampled_from(FILTERS), max_size=2).map(tuple)
HERE = st.builds(Here, NAMES, CONSUMERS, st.sampled_from(FILTERS))
THERE = st.builds(
    There,
    st.sampled_from(["a", "q0", "q1", "a::s"]),
    st.sampled_from(MODES),
    st.sampled_from(["b", "c"]),
    CONSUMERS,
    st.sampled_from(FILTERS),
    st.sampled_from(["", "", "away", "left"]),
    st.sampled_from(["", "", "", "anycast"]),
)


def filters(texts: tuple[str, ...]) -> tuple[Any, ...]:
    """What a node tells of its consumers: nothing in particular if one of them takes everything."""
    return () if "" in texts else tuple(map(parse_filter, texts))


def build(routing: str, here: list[Here], there: list[There], *, makes: bool) -> House:
    house = make_house(settings={"#": AddressSettings(auto_create_queues=makes)})
    definitions, client = house.core.definitions, house.client()
    for queue in here:
        condition = parse_filter(queue.filter) if queue.filter else None
        definitions.create_queue(queue.name, address="a", routing=routing, durable=False, filter=condition)
        for text in queue.consumers:
            client.consume(queue.name, filter=text)
    for number, one in enumerate(there, 1):
        forward = definitions.forward_queue(f"$meshq.cluster.mesh.{one.link}")
        own = parse_filter(one.filter) if one.filter else None
        about = (number, one.name, "a", one.routing or routing, len(one.consumers), filters(one.consumers), own)
        house.core.router.bind(one.link.encode(), RemoteBinding(forward, one.mode, *about, one.gone))
    return house


def explained(house: House, target: str, properties: dict[str, Any] | None) -> list[Row]:
    rows: list[Row] = []
    more = True
    while more:
        about = {"address": target, "properties": properties, "after": len(rows)}
        steps: Any = answer_call(house.core, "explain_route", about)
        values = next(steps)
        rows += values["steps"]
        more = values["more"]
    return rows


def key_of(row: Row) -> tuple[str, str]:
    return row["via"].rpartition(".")[2], row["name"]


def placed(house: House) -> dict[tuple[str, str], int]:
    """How many messages each queue here got, and how many wait here for each queue elsewhere."""
    found: dict[tuple[str, str], int] = {}
    router = house.core.router
    for queue in router.queues.values():
        if not queue.forwards:
            found["", queue.name] = queue.counts.added
            continue
        link = queue.name.rpartition(".")[2]
        names = {binding.number: binding.name for binding in router.remote(link.encode())}
        for view in queue.all_runs():
            for number in view.remote:
                key = link, names[number]
                found[key] = found.get(key, 0) + view.live
    return found


def send(client: RawClient, target: str, producer: bytes, values: dict[str, Any]) -> None:
    envelope = Envelope(KIND_PLAIN | KIND_PROPERTIES, b"", b"", encode_map(values))
    client.put(client.produce(target, producer), b"x", envelopes=[envelope])


def check(house: House, routing: str, target: str, values: dict[str, Any], producer: int) -> None:
    rows, without = explained(house, target, values), explained(house, target, None)
    before = placed(house)
    send(house.client(), target, bytes([producer]) * 16, values)
    after = placed(house)
    got = {key for key, count in after.items() if count > before.get(key, 0)}
    for said in (rows, without):
        answers = {key_of(row): row["gets"] for row in said}
        assert {key for key, answer in answers.items() if answer == "yes"} <= got
        assert got <= {key for key, answer in answers.items() if answer != "no"}
    # Where it is known what is in the message it is known who may get it: one of those that take turns does.
    for name in {row["name"] for row in rows}:
        group = [row for row in rows if routing == "anycast" or row["name"] == name]
        turns = [key_of(row) for row in group if "in turn" in row["why"]]
        assert not turns or len(got & set(turns)) == 1
    assert all(row["gets"] in ("yes", "no") or "in turn" in row["why"] for row in rows)


def unique(items: list[Any]) -> list[Any]:
    return list({(one.name, getattr(one, "link", "")): one for one in items}.values())


@pytest.mark.slow
@given(
    st.sampled_from(["anycast", "multicast"]),
    st.lists(HERE, max_size=3).map(unique),
    st.lists(THERE, max_size=5).map(unique),
    st.sampled_from(["a", "a", "a::q0", "a::q1", "a::s"]),
    st.booleans(),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
)
@example("anycast", [Here("q0")], [There("q1", "strict")], "a", True, [0, 0])
@example("anycast", [], [There("q1", "off")], "a", False, [0])
@example("multicast", [Here("q0")], [There("a::s", "on_demand", gone="away")], "a", True, [0])
@example("multicast", [Here("q1")], [There("q0", "strict", routing="anycast")], "a::q0", True, [0])
def test_what_is_said_is_what_is_done(
    routing: str, here: list[Here], there: list[There], target: str, makes: bool, sent: list[int]
) -> None:
    house = build(routing, here, there, makes=makes)
    for producer, value in enumerate(sent, 1):
        check(house, routing, target, {"x": value}, producer)


def said(house: House, target: str = "a") -> dict[tuple[str, str], tuple[str, str]]:
    return {key_of(row): (row["gets"], row["why"]) for row in explained(house, target, {"x": 1})}


def test_an_address_that_is_only_elsewhere_is_told_with_what_would_be_made() -> None:
    there = [There("q1", "on_demand", consumers=("",))]
    assert said(build("multicast", [], there, makes=True)) == {
        ("b", "q1"): ("yes", "each queue of a multicast address gets a copy")
    }
    assert said(build("anycast", [], there, makes=True)) == {
        ("", "a"): ("no", "nobody consumes from it, and another queue takes it"),
        ("b", "q1"): ("yes", "it is the only queue that takes it"),
    }
    assert said(build("anycast", [], [], makes=True)) == {
        ("", "a"): ("yes", "it is the only queue that takes it; the queue is made on first use")
    }
    assert said(build("anycast", [], [], makes=False)) == {}
    house = build("anycast", [], there, makes=True)
    assert said(house, "a::q1") == {("b", "q1"): ("yes", "it is sent to this queue")}
    # Asking has made nothing.
    assert "a" not in house.core.router.addresses and "a" not in house.core.router.queues


def test_where_it_is_not_known_whether_anybody_wants_it_now_the_only_queue_gets_it_all_the_same() -> None:
    house = build("anycast", [Here("q0", ("x = 1",))], [There("q0", "on_demand")], makes=True)
    assert {key_of(row): row["gets"] for row in explained(house, "a", None)} == {("", "q0"): "yes", ("b", "q0"): "no"}
    house = build("anycast", [Here("q0")], [There("q0", "on_demand", consumers=("x = 1",))], makes=True)
    rows = explained(house, "a", None)
    assert {key_of(row): row["gets"] for row in rows} == {("", "q0"): "maybe", ("b", "q0"): "maybe"}


def test_queues_elsewhere_to_which_nothing_goes_are_told_with_the_reason() -> None:
    there = [There("q0", "off", "b", ("",)), There("q0", "on_demand", "c", (), routing="multicast")]
    assert said(build("anycast", [Here("q0")], there, makes=True)) == {
        ("", "q0"): ("yes", "it is the only queue that takes it"),
        ("b", "q0"): ("no", "nothing goes there: the load balancing of the link is 'off'"),
        ("c", "q0"): ("no", "nothing goes there: the address is multicast there, and anycast here"),
    }
    assert said(build("anycast", [], there[:1], makes=False)) == {
        ("b", "q0"): ("no", "nothing goes there: the load balancing of the link is 'off'")
    }


@pytest.mark.parametrize(("gone", "is_gone"), [("away", "is away"), ("left", "has left")])
def test_a_node_that_is_gone_is_told_of_as_gone(gone: str, is_gone: str) -> None:
    there = [There("q0", "on_demand", consumers=("",), gone=gone)]
    assert said(build("anycast", [Here("q0")], there, makes=True)) == {
        ("", "q0"): ("yes", "it is the only queue that takes it"),
        ("b", "q0"): ("no", f"its node {is_gone}, and another queue takes it"),
    }
    waits = f"its node {is_gone}: until it is back the message waits here"
    assert said(build("multicast", [], [There("a::s", "on_demand", gone=gone)], makes=True)) == {
        ("b", "a::s"): ("yes", f"each queue of a multicast address gets a copy; {waits}")
    }


def test_what_comes_by_a_divert_stays_here_and_that_is_told() -> None:
    house = build("anycast", [Here("q0")], [There("q0", "strict")], makes=True)
    house.core.definitions.diverts.create("d", address="in", forwarding_address="a", filter=None, exclusive=True)
    assert said(house, "in") == {
        ("", "d"): ("yes", "it goes to 'a', only there"),
        ("", "in"): ("no", "the divert 'd' takes it away"),
        ("", "q0"): ("yes", "it is the only queue that takes it"),
        ("b", "q0"): ("no", "what comes by a divert stays on this node"),
    }
