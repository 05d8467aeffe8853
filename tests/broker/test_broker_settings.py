"""What a broker is made with, checked when it is built."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from meshq import Broker, limits
from meshq.errors import SettingsError
from meshq.node._settings import MEMORY_BYTES_MIN, BrokerSettings
from meshq.settings import Acceptor, AddressSettings, JournalSettings
from meshq.wire import Welcome


def checked(**changed: Any) -> BrokerSettings:
    """The settings of a broker with the defaults of ``Broker`` but for these."""
    return Broker(**{"name": "shop", "data_dir": None, **changed})._settings


def test_what_is_good_is_taken() -> None:
    settings = checked(
        data_dir=Path("data/shop"),
        journal=JournalSettings(segment_bytes=1 << 20),
        acceptors=["tcp://127.0.0.1:0", Acceptor("tcp://localhost:1")],
        queues=["a", "b"],
        address_settings={"#": AddressSettings()},
        node_id=b"n" * 16,
        memory_limit=MEMORY_BYTES_MIN,
        stop_timeout=math.inf,
    )
    assert settings.data_dir == "data/shop"
    assert [acceptor.url for acceptor in settings.acceptors] == ["tcp://127.0.0.1:0", "tcp://localhost:1"]
    assert settings.queues == ("a", "b")
    assert checked().journal == JournalSettings()
    assert checked(data_dir="x").data_dir == "x"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", ""),
        ("name", "a::b"),
        ("name", "x" * (limits.NODE_NAME_CHARACTERS_MAX + 1)),
        ("name", 7),
        ("data_dir", ""),
        ("data_dir", 7),
        ("data_dir", "a\0b"),
        ("journal", {}),
        ("acceptors", "tcp://127.0.0.1:0"),
        ("acceptors", 7),
        ("acceptors", [7]),
        ("acceptors", ["tcp://0.0.0.0:1"]),
        ("queues", "q"),
        ("queues", [""]),
        ("queues", {"q": 1}),
        ("address_settings", []),
        ("node_id", b"short"),
        ("node_id", "n" * 16),
        ("memory_limit", MEMORY_BYTES_MIN - 1),
        ("memory_limit", 1e9),
        ("stop_timeout", -1),
        ("stop_timeout", math.nan),
        ("stop_timeout", None),
    ],
)
def test_what_is_not_allowed_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        checked(**{setting: value})
    assert caught.value.setting.rstrip("s") == setting.rstrip("s") and caught.value.allowed


@pytest.mark.parametrize("setting", ["security", "journal"])
def test_what_may_hold_a_secret_is_not_shown(setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        checked(**{setting: {"encryption_keys": ["hidden"], "users": {"app": "hidden"}}})
    assert "hidden" not in str(caught.value) and caught.value.value == "***"


def test_the_longest_name_fits_into_what_a_client_is_told_first() -> None:
    name = checked(name="x" * limits.NODE_NAME_CHARACTERS_MAX).name
    assert Welcome(version=1, node_id=b"n" * 16, node_name=name).encode()
