"""The bounds of all settings of cluster connections and bridges: what is taken and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

from meshq import Bridge, ClusterConnection, SettingsError
from meshq.bridge import LinkSettings
from meshq.bridge._settings import BridgeSettings
from meshq.cluster._settings import ClusterSettings

#: What no number is.
NO_NUMBERS = ("1", True, None, math.nan, b"1", [1])
LINKS: dict[str, tuple[float, float]] = {
    "check_period": (0.01, math.inf),
    "connection_ttl": (0.1, math.inf),
    "call_timeout": (0.001, math.inf),
    "call_failover_timeout": (0.001, math.inf),
    "retry_interval": (0.001, 86_400),
    "retry_interval_multiplier": (1, 100),
    "max_retry_interval": (0.001, 86_400),
}
#: Of each kind of link, what it has to be told.
NAMES: dict[type[LinkSettings], dict[str, Any]] = {
    ClusterSettings: {"name": "mesh", "connector": "me"},
    BridgeSettings: {"name": "b", "queue": "q", "target": "there"},
}


def refused(kind: type[LinkSettings], name: str, value: Any) -> str:
    """What is said to be allowed instead."""
    with pytest.raises(SettingsError) as told:
        kind(**{**NAMES[kind], name: value})
    assert told.value.setting == name
    return told.value.allowed


def taken(kind: type[LinkSettings], name: str, value: Any) -> Any:
    return getattr(kind(**{**NAMES[kind], name: value}), name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in NAMES for name in LINKS],
)
def test_a_number_is_taken_up_to_both_its_bounds_and_not_beyond(kind: type[LinkSettings], name: str) -> None:
    low, high = LINKS[name]
    for good in (low, high, 1):
        assert taken(kind, name, good) == good
    beyond = (math.nextafter(low, -math.inf), -1, 0, *(() if high == math.inf else (math.nextafter(high, math.inf),)))
    for bad in (*beyond, *NO_NUMBERS):
        assert refused(kind, name, bad) == f"a number from {low} to {high}"


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", ["initial_connect_attempts", "reconnect_attempts"])
def test_attempts_are_counted_from_one_or_have_no_end(kind: type[LinkSettings], name: str) -> None:
    for good in (1, 2, 10**9, math.inf):
        assert taken(kind, name, good) == good
    for bad in (0, -1, 1.0, 2.5, -math.inf, *NO_NUMBERS):
        assert refused(kind, name, bad) == "a whole number from 1, or math.inf"


@pytest.mark.parametrize(
    ("kind", "name", "low", "high", "end"),
    [
        (ClusterSettings, "confirmation_window_size", 4_096, 1 << 30, ", or math.inf"),
        (BridgeSettings, "confirmation_window_size", 4_096, 1 << 30, ", or math.inf"),
        (BridgeSettings, "window", 1, 20_000, ""),
        (ClusterSettings, "min_large_message_size", 1_024, 16 << 20, ""),
    ],
)
def test_sizes_are_whole_numbers_within_their_bounds(
    kind: type[LinkSettings], name: str, low: int, high: int, end: str
) -> None:
    for good in (low, high):
        assert taken(kind, name, good) == good
    for bad in (low - 1, high + 1, low + 0.5, float(high), *NO_NUMBERS):
        assert refused(kind, name, bad) == f"a whole number from {low} to {high}{end}"
    if end:
        assert taken(kind, name, math.inf) == math.inf


def test_announcements_are_counted_from_none_and_are_a_time_apart() -> None:
    for good in (0, 1, 2, 1_000):
        assert taken(ClusterSettings, "notification_attempts", good) == good
    for bad in (-1, 1_001, 2.0, *NO_NUMBERS):
        assert refused(ClusterSettings, "notification_attempts", bad) == "a whole number from 0 to 1000"
    for good in (0.001, 1, 86_400):
        assert taken(ClusterSettings, "notification_interval", good) == good
    for bad in (0, 0.0009, 86_401, math.inf, *NO_NUMBERS):
        assert refused(ClusterSettings, "notification_interval", bad) == "a number from 0.001 to 86400"


def test_the_window_of_a_link_is_a_number_of_bytes_or_has_no_end() -> None:
    for good in (1, 1_048_576, math.inf):
        assert taken(ClusterSettings, "producer_window_size", good) == good
    for bad in (0, -1, 1.5, -math.inf, *NO_NUMBERS):
        assert refused(ClusterSettings, "producer_window_size", bad) == "a whole number from 1 to inf"


def test_a_mode_is_one_of_four() -> None:
    for mode in ("off", "strict", "on_demand", "off_with_redistribution"):
        assert taken(ClusterSettings, "load_balancing", mode) == mode
    for bad in ("", "STRICT", None, True):
        allowed = "'off' or 'strict' or 'on_demand' or 'off_with_redistribution'"
        assert refused(ClusterSettings, "load_balancing", bad) == allowed


@pytest.mark.parametrize("kind", [ClusterSettings, BridgeSettings])
def test_names_are_names(kind: type[LinkSettings]) -> None:
    for name in ("name", "connector") if kind is ClusterSettings else ("name", "target"):
        for bad in ("", None, 3, b"name", "x" * 1_001):
            if (name, bad) != ("connector", None):
                refused(kind, name, bad)


def test_connectors_are_a_list_of_names() -> None:
    for good in ([], ["one", "tcp://two:1"], ("one",)):
        assert taken(ClusterSettings, "static_connectors", good) == tuple(good)
    for bad in ("one", b"one", 3, {"one"}, None):
        assert refused(ClusterSettings, "static_connectors", bad) == "a list of connectors' names, or URLs"
    for bad in ([""], ["one", 3], ["one", None]):
        with pytest.raises(SettingsError, match="static_connectors"):
            ClusterSettings(name="mesh", connector="me", static_connectors=bad)


def test_prefixes_are_a_text() -> None:
    for bad in (None, 3, ["eu"], b"eu"):
        allowed = "prefixes of addresses with commas between them, '!' before one to exclude"
        assert refused(ClusterSettings, "address", bad) == allowed


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ClusterSettings, "allow_direct_connections_only"),
        (ClusterSettings, "use_duplicate_detection"),
        (BridgeSettings, "use_duplicate_detection"),
    ],
)
def test_switches_are_true_or_false(kind: type[LinkSettings], name: str) -> None:
    for good in (True, False):
        assert taken(kind, name, good) is good
    for bad in (0, 1, None, "yes"):
        assert refused(kind, name, bad) == "True or False"


def test_what_a_bridge_reads_carries_and_makes_of_it() -> None:
    for name in ("queue", "forwarding_address"):
        assert taken(BridgeSettings, name, "orders.new") == "orders.new"
        for bad in ("", "a" * 1_001, 3):
            refused(BridgeSettings, name, bad)
    for name in ("forwarding_address", "filter", "transformer"):
        assert taken(BridgeSettings, name, None) is None
    assert taken(BridgeSettings, "filter", "n > 2") == "n > 2"
    with pytest.raises(SettingsError):
        BridgeSettings(**NAMES[BridgeSettings], filter="n >")
    assert taken(BridgeSettings, "transformer", len) is len
    assert refused(BridgeSettings, "transformer", "len") == "a function from a Message to a Message or None"


def test_each_setting_of_a_link_has_its_name_with_the_client() -> None:
    given = {name: number for number, name in enumerate([*LINKS, "initial_connect_attempts", "reconnect_attempts"], 1)}
    made = LinkSettings(**given, confirmation_window_size=5_000).client()
    assert made == {**given, "confirmation_window": 5_000}


@pytest.mark.parametrize(
    ("initial", "later", "ends"), [(math.inf, math.inf, False), (1, math.inf, True), (math.inf, 1, True), (2, 2, True)]
)
def test_attempts_end_if_those_of_the_first_link_or_those_of_a_later_one_do(
    initial: float, later: float, ends: bool
) -> None:
    settings = ClusterSettings(name="mesh", connector="me", initial_connect_attempts=initial, reconnect_attempts=later)
    assert settings.gives_up is ends


def test_settings_are_given_by_their_names() -> None:
    for kind, *given in (
        (LinkSettings, 30),
        (ClusterSettings, "mesh", "me"),
        (BridgeSettings, "b", "q", "there"),
        (ClusterConnection, "mesh", "me"),
        (Bridge, "b", "q"),
    ):
        with pytest.raises(TypeError):
            kind(*given)  # type: ignore[operator]


RETRY_AND_DUPLICATES = (
    "retry_interval",
    "retry_interval_multiplier",
    "max_retry_interval",
    "initial_connect_attempts",
    "reconnect_attempts",
    "use_duplicate_detection",
)


def test_retry_and_duplicate_detection_have_the_same_names_and_defaults_for_bridges_and_cluster_connections() -> None:
    shown = [inspect.signature(kind).parameters for kind in (Bridge, ClusterConnection)]
    for name in RETRY_AND_DUPLICATES:
        bridge, cluster = (parameters[name].default for parameters in shown)
        assert bridge == cluster is not inspect.Parameter.empty, name
    given = {"retry_interval": 0.25, "retry_interval_multiplier": 3.0, "max_retry_interval": 7.0}
    there = Bridge("b", queue="q", target="inproc://b", **given).settings.client()
    assert there.items() >= given.items()
    cluster_client = ClusterConnection("mesh", connector="me", **given).settings.client()
    assert {name: there[name] for name in given} == {name: cluster_client[name] for name in given}
