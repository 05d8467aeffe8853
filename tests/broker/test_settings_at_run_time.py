"""Settings of addresses that are changed while the node runs: what holds, from when on, and in the next life."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.address import NOTIFICATIONS
from meshq.errors import SettingsError
from meshq.settings import AddressSettings, kept_address_settings_of
from meshq.wire import BY_NUMBER, FLAG_REJECT
from tests.broker.kit import House, RawClient, make_house, with_ids
from tests.broker.logs import FakeLog

GIVEN = {"#": AddressSettings(max_delivery_attempts=5), "a.#": AddressSettings(redelivery_delay=1.0)}


def house_of(log: FakeLog | None = None, **options: Any) -> House:
    return make_house(log or FakeLog(), settings=GIVEN, **options)


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return house_of(log, records=log.recovered())


def holds(house: House, address: str, *names: str) -> list[Any]:
    client = house.client()
    values = client.call("address_settings", address=address)
    client.close()
    assert values is not None
    return [values[name] for name in names]


def test_what_is_set_takes_the_place_of_what_the_pattern_said_and_others_hold() -> None:
    house = house_of()
    client = house.client()
    assert holds(house, "a.b", "max_delivery_attempts", "redelivery_delay") == [5, 1.0]
    assert client.call("set_address_settings", pattern="a.#", dead_letter_address="dead") == {}
    names = ("max_delivery_attempts", "redelivery_delay", "dead_letter_address")
    assert holds(house, "a.b", *names) == [5, 0.0, "dead"]
    client.call("set_address_settings", pattern="a.b", max_delivery_attempts=7)
    assert holds(house, "a.b", *names) == [7, 0.0, "dead"] and holds(house, "a.c", *names) == [5, 0.0, "dead"]
    later = next_life(house)
    assert holds(later, "a.b", *names) == [7, 0.0, "dead"] and holds(later, "b", *names) == [5, 0.0, None]


@pytest.mark.parametrize("pattern", ["#", "*", "orders.*", "a.#.b", "orders"])
def test_any_pattern_is_taken_in_this_life_and_the_next(pattern: str) -> None:
    house = house_of()
    house.client().call("set_address_settings", pattern=pattern, max_delivery_attempts=3)
    assert list(house.core.router.table.set) == [pattern]
    house = next_life(house)
    assert house.core.router.table.set[pattern].max_delivery_attempts == 3
    client = house.client()
    client.call("remove_address_settings", pattern=pattern)
    assert client.code == 0 and not house.core.router.table.set


@pytest.mark.parametrize("setting", ["dead_letter_address", "expiry_address"])
@pytest.mark.parametrize("name", ["dlq.*", "#", "a.#.b"])
def test_no_message_is_taken_away_to_where_nobody_can_take_it(
    setting: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="wildcards") as caught:
        AddressSettings(**{setting: name})
    assert (caught.value.setting, caught.value.value) == (setting, name)
    house = house_of()
    client = house.client()
    before = house.log.last
    client.call("set_address_settings", pattern="#", **{setting: name})
    assert BY_NUMBER[client.code].name == "usage" and house.log.last == before
    # An earlier version took it literally: its store opens, and goes on as it was.
    with monkeypatch.context() as earlier:
        earlier.setattr("meshq.broker.catalog._settings_definitions.address_settings_of", kept_address_settings_of)
        client.call("set_address_settings", pattern="#", **{setting: name})
    house = next_life(house)
    assert getattr(house.core.router.table.set["#"], setting) == name
    assert holds(house, "q", setting) == holds(house, NOTIFICATIONS, setting) == [name]
    if setting == "dead_letter_address":
        client = house.client()
        client.put(client.produce(), b"x")
        reader = client.consume()
        house.rest()
        client.settle(reader, (1, 1), flags=FLAG_REJECT)
        house.rest()
        dead = client.consume(name)
        house.rest()
        assert client.bodies(dead) == [b"x"]
    # No other queue of such a name is made.
    client.consume(name + ".more")
    assert BY_NUMBER[client.code].name == "usage"


def test_what_is_removed_gives_way_to_what_the_node_was_built_with() -> None:
    house = house_of()
    client = house.client()
    client.call("set_address_settings", pattern="a.#", redelivery_delay=9.0)
    client.call("set_address_settings", pattern="c", redelivery_delay=9.0)
    client.call("remove_address_settings", pattern="a.#")
    client.call("remove_address_settings", pattern="c")
    for one in (house, next_life(house)):
        assert holds(one, "a.b", "redelivery_delay") == [1.0] and holds(one, "c", "redelivery_delay") == [0.0]
    client.call("remove_address_settings", pattern="a.#")
    assert BY_NUMBER[client.code].name == "not_found"


def test_a_queue_that_is_there_goes_by_the_new_settings() -> None:
    house = house_of()
    client = house.client()
    client.put(client.produce(), b"a", b"b")
    reader = client.consume()
    house.rest()
    client.call("set_address_settings", pattern="q", dead_letter_address="dead")
    client.settle(reader, (1, 1), flags=FLAG_REJECT)
    assert house.queue("dead").counts.ready == 1
    client.call("remove_address_settings", pattern="q")
    client.settle(reader, (2, 2), flags=FLAG_REJECT)
    assert house.queue("dead").counts.ready == 1


def test_duplicate_ids_over_a_smaller_window_are_forgotten_at_once() -> None:
    house = house_of()
    client = house.client()
    sender = client.produce()
    client.put(sender, b"1", b"2", b"3", envelopes=with_ids("a", "b", "c"))
    client.call("set_address_settings", pattern="q", duplicate_id_cache_size=1)
    client.put(sender, b"4", b"5", envelopes=with_ids("a", "c"))
    assert house.queue().counts.added == 4, "the oldest was forgotten, the newest was not"
    client.call("set_address_settings", pattern="q", duplicate_id_cache_size=10)
    client.put(sender, b"6", b"7", envelopes=with_ids("d", "e"))
    client.put(sender, b"8", b"9", envelopes=with_ids("d", "e"))
    assert house.queue().counts.added == 6


def test_queues_made_on_first_use_go_from_now_on() -> None:
    house = house_of()
    client = house.client()
    client.leave(client.consume("passing"))
    assert "passing" in house.core.router.queues
    client.call("set_address_settings", pattern="#", auto_delete_queues=True)
    assert "passing" not in house.core.router.queues


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"pattern": "a..b"}, "usage"),
        ({"pattern": "a", "max_delivery_attempts": 0}, "usage"),
        ({"pattern": "a", "redelivery_delay": -1.0}, "usage"),
        ({"pattern": "a", "default_routing": "both"}, "usage"),
        ({"pattern": "a", "unknown": 1}, "usage"),
        ({"pattern": "a", "dead_letter_address": "$meshq.x"}, "usage"),
        ({"pattern": "$meshq.#"}, "usage"),
    ],
)
def test_what_can_not_be_is_refused_and_changes_nothing(arguments: dict[str, Any], refusal: str) -> None:
    house = house_of()
    client: RawClient = house.client()
    before = house.log.last
    client.call("set_address_settings", **arguments)
    assert BY_NUMBER[client.code].name == refusal
    assert house.log.last == before and not house.core.router.table.set


def test_there_is_a_bound_on_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESS_SETTINGS_MAX", 2)
    house = house_of()
    client = house.client()
    for pattern in ("a", "b", "a", "c"):
        client.call("set_address_settings", pattern=pattern, redelivery_delay=1.0)
    assert BY_NUMBER[client.code].name == "usage" and list(house.core.router.table.set) == ["a", "b"]
