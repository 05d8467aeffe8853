"""The page of all keys is drawn from the settings, and what it lists can be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshq import (
    AddressSettings,
    Bridge,
    BroadcastGroup,
    Broker,
    ClusterConnection,
    DiscoveryGroup,
    Security,
    SharedDirectory,
    StaticUnicast,
    UDPMulticast,
    Zeroconf,
)
from meshq.config._keys import keys_of, tables
from meshq.config._reference import page
from meshq.settings import TLS, Acceptor, JournalSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_that_of_these_settings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "draw it anew: python tools/configuration.py"


def test_everything_that_a_broker_takes_is_a_table() -> None:
    kinds = [Broker, AddressSettings, JournalSettings, Security, Acceptor, TLS, Bridge, ClusterConnection]
    kinds += [BroadcastGroup, DiscoveryGroup, UDPMulticast, SharedDirectory, StaticUnicast, Zeroconf]
    assert set(tables().values()) >= set(kinds)


@pytest.mark.parametrize("kind", tables().values())
def test_every_key_is_listed_with_its_default_or_asks_for_one(kind: type[Any]) -> None:
    for key in keys_of(kind).values():
        if key.settable:
            (row,) = {line for line in page().splitlines() if line.startswith(f"| `{key.name}` ")} & set(rows(kind))
            assert row.count("|") == 4


def rows(kind: type[Any]) -> list[str]:
    """The rows of one table of the page."""
    number = list(tables().values()).index(kind) + 1
    return page().split("\n## ")[number].splitlines()


def test_what_can_not_be_given_in_a_file_is_not_listed() -> None:
    assert [key.name for key in keys_of(Broker).values() if not key.settable] == []
    assert [key.name for key in keys_of(Bridge).values() if not key.settable] == ["transformer"]
    assert [key.name for key in keys_of(ClusterConnection).values() if not key.settable] == []
