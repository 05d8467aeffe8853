"""The signatures of what takes many settings show each of them, with the default that it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf
from typing import Any

import attrs
import pytest

import meshq
from meshq import AddressSettings, Bridge, ClientFactory, ClusterConnection, blocking, connect
from meshq.bridge._settings import BridgeSettings
from meshq.client import ClientSettings
from meshq.cluster._settings import ClusterSettings

#: How one connects, waits and comes back.
LINK = {
    "check_period": 30,
    "connection_ttl": 60,
    "call_timeout": 30,
    "call_failover_timeout": 30,
    "retry_interval": 0.5,
    "retry_interval_multiplier": 1.0,
    "max_retry_interval": 2.0,
    "initial_connect_attempts": inf,
    "reconnect_attempts": inf,
    "confirmation_window_size": 1_048_576,
    "use_duplicate_detection": True,
    "tls": None,
}
CLUSTER = {
    **LINK,
    "discovery": None,
    "static_connectors": (),
    "allow_direct_connections_only": False,
    "address": "",
    "load_balancing": "on_demand",
    "group_name": None,
    "max_hops": 1,
    "min_large_message_size": 102_400,
    "call_failover_timeout": inf,
    "producer_window_size": inf,
    "notification_interval": 1.0,
    "notification_attempts": 2,
    "group_timeout": inf,
    "max_group_pins": 65_536,
    "stuck_timeout": 60.0,
    "connector": None,
    "user": "ACTIVEMQ.CLUSTER.ADMIN.USER",
    "password": "CHANGE ME!!",
    "forward_when_no_consumers": None,
}
BRIDGE = {
    **LINK,
    "forwarding_address": None,
    "filter": None,
    "transformer": None,
    "window": 2_000,
    "user": None,
    "password": None,
}
CLIENT = {
    "env": None,
    "user": None,
    "password": None,
    "client_id": None,
    "tls": None,
    "insecure": False,
    "load_balancing": None,
    "use_topology": True,
    "initial_wait_timeout": 10,
    "initial_wait_for": None,
    "initial_connect_attempts": 1,
    "reconnect_attempts": inf,
    "retry_interval": 0.1,
    "retry_interval_multiplier": 2.0,
    "max_retry_interval": 2.0,
    "call_timeout": 30,
    "call_failover_timeout": 30,
    "connection_ttl": 60,
    "check_period": 30,
    "confirmation_window": 1_048_576,
    "min_large_message_size": 102_400,
    "resend": True,
}
CLIENTS = [ClientFactory, connect, blocking.ClientFactory, blocking.connect]


@pytest.mark.parametrize(
    ("made", "required", "optional"),
    [
        (ClusterConnection, ["name"], CLUSTER),
        (Bridge, ["name", "queue", "target"], BRIDGE),
        *[(made, ["url"], CLIENT) for made in CLIENTS],
    ],
)
def test_every_setting_stands_in_the_signature_with_its_default(
    made: Callable[..., Any], required: list[str], optional: dict[str, object]
) -> None:
    parameters = inspect.signature(made).parameters.values()
    assert [one.name for one in parameters if one.default is inspect.Parameter.empty] == required
    assert {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty} == optional
    first, *others = parameters
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {one.kind for one in others} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("made", "settings"),
    [(ClusterConnection("m"), ClusterSettings), (Bridge("b", queue="q", target="t"), BridgeSettings)],
)
def test_what_the_signature_says_is_what_is_meant_when_nothing_is_said(made: Any, settings: type[Any]) -> None:
    shown = inspect.signature(type(made)).parameters
    for name in inspect.signature(settings).parameters:
        if shown[name].default is not inspect.Parameter.empty:
            assert getattr(made.settings, name) == shown[name].default, name


def test_each_setting_may_be_given_as_its_signature_says() -> None:
    every = {name: value for name, value in CLUSTER.items() if name != "password"}
    given = ClusterConnection("m", password="another", **every)  # type: ignore[arg-type]
    assert given.settings == ClusterConnection("m").settings
    assert Bridge("b", queue="q", target="t", **BRIDGE).settings == Bridge("b", queue="q", target="t").settings  # type: ignore[arg-type]
    assert ClientFactory("tcp://127.0.0.1:1", **CLIENT).settings == ClientSettings()  # type: ignore[arg-type]


def test_a_broker_names_its_settings_itself() -> None:
    assert all(one.kind is not one.VAR_KEYWORD for one in inspect.signature(meshq.Broker).parameters.values())


def test_address_settings_show_each_of_theirs_with_its_default() -> None:
    parameters = inspect.signature(AddressSettings).parameters
    assert list(parameters) == [field.name for field in attrs.fields(AddressSettings) if field.init]
    default = AddressSettings()
    assert {name: one.default for name, one in parameters.items()} == {
        name: getattr(default, name) for name in parameters
    }
    assert {one.kind for one in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
