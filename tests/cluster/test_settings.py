"""What a cluster connection may be told, and what it is when it isn't told."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from meshq import Broker, ClusterConnection, SettingsError
from meshq.cluster._settings import ClusterSettings
from meshq.discovery import DiscoveryGroup
from meshq.testing import MemoryBroadcast

LAN = DiscoveryGroup("lan", MemoryBroadcast())


def fits(address: str, *names: str) -> list[bool]:
    """Whether a cluster connection with this ``address`` is for these names."""
    settings = ClusterSettings(name="mesh", connector="me", address=address)
    return [settings.takes(name) for name in names]


@pytest.mark.parametrize(
    ("address", "inside", "outside"),
    [
        ("", ["eu", "x", "eu.uk.london"], []),
        ("eu", ["eu", "eu.uk", "europe", "eu.x"], ["us.x", "e", "a.eu"]),
        ("!eu", ["us.x", "a.eu"], ["eu", "eu.x", "europe"]),
        ("eu.uk,eu.de", ["eu.uk", "eu.uk.london", "eu.de"], ["eu.fr", "eu"]),
        ("eu,!eu.uk", ["eu.de", "eu"], ["eu.uk", "eu.uk.london", "us"]),
        ("!eu.uk,eu", ["eu.de", "eu"], ["eu.uk", "eu.uk.london", "us"]),
        (" eu.uk , ! eu.uk.x ,eu.de", ["eu.uk", "eu.de"], ["eu.fr", "eu.uk.x"]),
        ("eu,us", ["eu.x", "us.x"], ["u", "s"]),
        (",eu, ,", ["eu"], ["us", ""]),
        ("eu.*", ["eu.*"], ["eu.uk"]),
        ("eu.#", ["eu.#.x"], ["eu.uk"]),
        ("news.*", ["news.*", "news.*.sport"], ["news", "news.europe", "news.europe.sport"]),
    ],
)
def test_an_address_is_the_beginning_of_those_it_is_for(address: str, inside: list[str], outside: list[str]) -> None:
    assert fits(address, *inside) == [True] * len(inside)
    assert fits(address, *outside) == [False] * len(outside)


@pytest.mark.parametrize("address", ["!", "eu,!eu", "eu.uk, eu.de, !eu", "!,eu"])
def test_a_list_that_leaves_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="a list that leaves some addresses") as caught:
        ClusterConnection("mesh", address=address)
    assert (caught.value.setting, caught.value.value) == ("address", address)


def test_what_is_not_said_is_this() -> None:
    settings = ClusterSettings(name="mesh", connector="me")
    assert (settings.load_balancing, settings.max_hops, settings.address) == ("on_demand", 1, "")
    assert (settings.check_period, settings.connection_ttl, settings.min_large_message_size) == (30, 60, 102_400)
    assert (settings.call_timeout, settings.call_failover_timeout) == (30, math.inf)
    assert (settings.retry_interval, settings.retry_interval_multiplier, settings.max_retry_interval) == (0.5, 1.0, 2.0)
    assert (settings.initial_connect_attempts, settings.reconnect_attempts) == (math.inf, math.inf)
    assert settings.use_duplicate_detection is True
    assert (settings.confirmation_window_size, settings.producer_window_size) == (1_048_576, math.inf)
    assert (settings.notification_interval, settings.notification_attempts) == (1.0, 2)


@pytest.mark.parametrize(("older", "mode"), [(True, "strict"), (False, "on_demand")])
def test_the_older_name_of_the_mode_is_understood_with_a_warning(older: bool, mode: str) -> None:
    with pytest.warns(
        DeprecationWarning, match=f"forward_when_no_consumers={older} is .* load_balancing='{mode}'"
    ) as told:
        made = ClusterConnection("mesh", connector="me", forward_when_no_consumers=older)
    assert made.settings.load_balancing == mode
    assert told[0].filename == __file__


def test_without_the_older_name_nothing_is_warned_of_and_the_mode_is_on_demand(
    recwarn: pytest.WarningsRecorder,
) -> None:
    assert ClusterConnection("mesh", connector="me").settings.load_balancing == "on_demand"
    assert ClusterConnection("mesh", connector="me", forward_when_no_consumers=None).settings == ClusterSettings(
        name="mesh", connector="me"
    )
    assert not recwarn.list


@pytest.mark.parametrize("mode", ["strict", "on_demand"])
@pytest.mark.parametrize("older", [True, False])
def test_both_names_of_the_mode_together_are_refused(mode: str, older: bool) -> None:
    with pytest.raises(SettingsError, match=r"forward_when_no_consumers.*nothing beside load_balancing"):
        ClusterConnection("mesh", connector="me", load_balancing=mode, forward_when_no_consumers=older)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"load_balancing": "some"}, "load_balancing"),
        ({"load_balancing": "ON_DEMAND"}, "'off_with_redistribution'"),
        ({"max_hops": 0}, "max_hops.*a whole number from 1 to 16"),
        ({"max_hops": 17}, "max_hops.*a whole number from 1 to 16"),
        ({"max_hops": 2.0}, "max_hops.*a whole number from 1 to 16"),
        ({"discovery": "lan"}, "discovery=.*one DiscoveryGroup, or None"),
        ({"discovery": False}, "discovery=.*one DiscoveryGroup, or None"),
        ({"discovery": LAN, "allow_direct_connections_only": True}, "allow_direct_connections_only.*with discovery"),
        ({"static_connectors": "one"}, "static_connectors"),
        ({"static_connectors": ["one", ""]}, "static_connectors"),
        ({"connector": ""}, "connector"),
        ({"retry_interval": 0}, "retry_interval"),
        ({"reconnect_attempts": 0}, "reconnect_attempts"),
        ({"address": 3}, "address"),
        ({"use_duplicate_detection": 1}, "use_duplicate_detection.*True or False"),
        ({"producer_window_size": 0}, "producer_window_size.*a whole number from 1 to inf"),
        ({"min_large_message_size": 1_023}, "min_large_message_size.*a whole number from 1024 to 16777216"),
        ({"notification_interval": 0}, "notification_interval.*a number from 0.001"),
        ({"notification_attempts": -1}, "notification_attempts.*a whole number from 0"),
        ({"call_failover_timeout": 0}, "call_failover_timeout.*a number from 0.001"),
        ({"allow_direct_connections_only": 1}, "allow_direct_connections_only"),
        ({"forward_when_no_consumers": "STRICT"}, "forward_when_no_consumers.*True, False or None"),
        ({"speed": 3}, "speed"),
        ({"user": ""}, "user"),
        ({"password": ""}, "password"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        ClusterConnection("mesh", **{"connector": "me", **wrong})


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"connector": "you"}, "connector"), ({"static_connectors": ["him"]}, "static_connectors")],
)
async def test_connectors_are_those_of_the_broker(settings: dict[str, Any], named: str) -> None:
    mesh = ClusterConnection("mesh", **{"connector": "me", **settings})
    with pytest.raises(SettingsError, match=named):
        async with Broker("n", data_dir=None, connectors={"me": "inproc://n"}, services=[mesh]):
            pytest.fail("it started")


async def starts(count: int, caplog: pytest.LogCaptureFixture, **login: str) -> list[int]:
    """Warnings about the password, start by start."""
    found = []
    for _ in range(count):
        caplog.clear()
        mesh = ClusterConnection("mesh", connector="me", **login)
        async with Broker("n", data_dir=None, connectors={"me": "tcp://127.0.0.1:1"}, services=[mesh]):
            warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
            found.append(sum(getattr(record, "event", "") == "default_cluster_password" for record in warnings))
            assert "CHANGE" not in caplog.text
    return found


async def test_the_default_password_is_warned_of_at_every_start(caplog: pytest.LogCaptureFixture) -> None:
    assert await starts(2, caplog) == [1, 1]
    assert await starts(1, caplog, user="ACTIVEMQ.CLUSTER.ADMIN.USER", password="CHANGE ME!!") == [1]
    assert await starts(1, caplog, password="another one") == [0]


async def test_the_default_password_is_refused_where_other_machines_may_come_in() -> None:
    mesh = ClusterConnection("mesh", connector="me")
    with pytest.raises(SettingsError, match="another one than the default"):
        Broker(
            "n",
            data_dir=None,
            acceptors=["tcp://0.0.0.0:0?insecure=true"],
            connectors={"me": "tcp://127.0.0.1:1"},
            services=[mesh],
        )


def test_each_cluster_connection_of_a_broker_has_a_name_of_its_own() -> None:
    """Messages for other nodes wait in queues of that name: two would take them from each other."""
    one, other, same = (ClusterConnection(name, connector="me") for name in ("one", "other", "one"))
    settings: dict[str, Any] = {"data_dir": None, "connectors": {"me": "inproc://n"}}
    Broker("n", services=[one, other], **settings)
    for twice in ([one, same], [one, one]):
        with pytest.raises(SettingsError, match=r"services=.*different names .* of the kind 'cluster_connection'"):
            Broker("n", services=twice, **settings)
