"""The places that a topic has for queues of network consumers: nobody takes all of them, and who has many is named."""

from __future__ import annotations

import pytest

from meshq import Permissions, Security, limits
from meshq.address import NETWORK_KEPT
from meshq.broker import records
from meshq.broker.catalog._network_demand_plan import NETWORK_SHARE, NetworkPlaces, holder_of
from meshq.store import JournalRecord
from meshq.wire import BY_NAME, Answer, FrameType, header_of
from tests.broker.kit import FakeLog, House, RawClient, as_user, make_core, make_house
from tests.broker.test_kept_for_network import NAME, keep

USAGE = BY_NAME["usage"].number
ROUTES = [(f"{number:x}" * 32,) for number in range(1, 16)]


@pytest.fixture(autouse=True)
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic has eight places."""
    monkeypatch.setattr(limits, "NETWORK_QUEUES_PER_ADDRESS_MAX", 8)


def with_users(*names: str) -> Security:
    """Users that may do everything."""
    everything = Permissions(manage={"all"}, send={"all"}, consume={"all"}, create={"all"})
    return Security(
        users=dict.fromkeys(names, "a long password"),
        roles={name: {"all"} for name in names},
        permissions={"#": everything},
    )


def taken(client: RawClient, *, alike: bool = False) -> int:
    """Take places until one is refused; each is for another broker, or for one and the same."""
    for number, route in enumerate(ROUTES):
        routes = ROUTES[0] if alike else route
        keep(client, subscription="own", durable=False, name="", filter=f"a = {number}", routes=routes)
        if client.code == USAGE:
            return number
    raise AssertionError("nobody refuses")


def said(client: RawClient) -> str:
    return header_of(client.last(FrameType.ANSWER), Answer).text


def test_a_user_leaves_places_to_others_and_is_named_however_many_brokers_it_poses_as() -> None:
    security = with_users("many", "few")
    house = make_house(FakeLog(), security=security)
    many, few = as_user(house, "many"), as_user(house, "few")
    assert taken(many) == 6
    assert "6 of the 8 queues for network consumers at 't' are for the user 'many'" in said(many)
    assert taken(few) == 2
    assert "has its 8 queues for network consumers, most of them for somebody else" in said(few)
    # Who the others are is for who reads the log.
    assert "many" not in said(few)
    texts = [text for event, text in house.host.warnings if event == "network_places"]
    assert len(texts) == 2 and "the user 'many'" in texts[0] and texts[1].endswith("the user 'few' gets none")
    assert "most of them, 6, for the user 'many'" in texts[1]


def test_without_users_a_broker_leaves_places_to_others() -> None:
    house = make_house(FakeLog())
    client = house.client()
    assert taken(client, alike=True) == 6
    assert f"for the broker {ROUTES[0][0]}" in said(client)
    keep(client, subscription="own", durable=False, name="", routes=ROUTES[1])
    assert client.code == 0


def test_a_kept_queue_is_of_its_broker_after_a_start_until_its_user_is_there_again() -> None:
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    client.leave(keep(client, routes=ROUTES[0]))
    house.rest()
    again = House(make_core(log.after_crash(), records=log.recovered(), security=with_users("u")))
    places = again.core.router.addresses["t"].network
    assert (places.taken, places._held) == (1, {holder_of(ROUTES[0]): 1})
    keep(as_user(again, "u"), routes=ROUTES[0], name=NAME)
    assert (places.taken, places._held) == (1, {"the user 'u'": 1})


def test_a_user_has_its_places_over_starts_and_gets_no_more_by_them() -> None:
    log, security = FakeLog(), with_users("many", "few")

    def fill(client: RawClient, hub: str) -> int:
        """Keep messages in further queues until one is refused."""
        for number, routes in enumerate(ROUTES):
            channel = keep(client, routes=routes, name=f"{NETWORK_KEPT}{hub}.t@{'a' * 32}#{number}-{'0' * 16}")
            if client.code == USAGE:
                return number
            client.leave(channel)
        raise AssertionError("nobody refuses")

    house = make_house(log, security=security)
    assert fill(as_user(house, "many"), "first") == 6
    for hub in ("second", "third"):
        house.rest()
        found, log = log.recovered(), log.after_crash()
        house = House(make_core(log, records=found, security=security))
        # The queues that it has are not opened again.
        assert fill(as_user(house, "many"), hub) == 0
    assert fill(as_user(house, "few"), "few") == 2


def test_who_opens_the_queues_of_another_user_has_no_more_places_than_it_would_get() -> None:
    house = make_house(FakeLog(), security=with_users("many", "few"))
    many, few = as_user(house, "many"), as_user(house, "few")
    names = [f"{NETWORK_KEPT}few.t@{'a' * 32}#{number}-{'0' * 16}" for number in range(3)]
    assert taken(many) == 6
    for name in names[:2]:
        few.leave(keep(few, routes=ROUTES[0], name=name))
    places = house.core.router.addresses["t"].network
    for name in names[:2]:
        many.leave(keep(many, routes=ROUTES[0], name=name))
        assert many.code == 0
    assert places._held == {"the user 'many'": 6, "the user 'few'": 2} and places.taken == 8
    # Who would get a further place has the place of what it has opened.
    places.count("the user 'many'", -5)
    many.leave(keep(many, routes=ROUTES[0], name=names[0]))
    assert places._held == {"the user 'many'": 2, "the user 'few'": 1}


def test_what_an_earlier_version_has_written_is_of_the_next_broker() -> None:
    old = {
        "kind": "queue",
        "name": f"t::{NAME}",
        "address": "t",
        "number": 7,
        "subscription": "shared",
        "filter": "a = 1",
    }
    written = [{"kind": "address", "name": "t", "routing": "multicast"}, {**old, "routes": ROUTES[0][0]}]
    core = make_core()
    payloads = [records.encode_definition(one) for one in written]
    core.recovery().take([JournalRecord(at, records.DEFINITION, one) for at, one in enumerate(payloads, start=1)])
    assert core.router.addresses["t"].network._held == {holder_of(ROUTES[0]): 1}


@pytest.mark.parametrize("most", [1, 2, 8, 400])
def test_whoever_comes_finds_a_place_until_many_have_some(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(limits, "NETWORK_QUEUES_PER_ADDRESS_MAX", most)
    places, holders = NetworkPlaces(), 0
    while not places.lack("t", f"h{holders}"):
        while not places.lack("t", f"h{holders}"):
            places.count(f"h{holders}", 1)
        holders += 1
    assert places.taken == most and holders >= min(most // (NETWORK_SHARE + 1), 3)
    for number in range(holders):
        places.count(f"h{number}", -places._held[f"h{number}"])
    assert (places.taken, places._held) == (0, {})
