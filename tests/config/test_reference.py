"""The page of all keys is drawn from the settings, and what it lists can be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from meshq import (
    AddressSettings,
    Bridge,
    BroadcastGroup,
    Broker,
    ClusterConnection,
    Colocated,
    DiscoveryGroup,
    LiveOnly,
    MajorityVote,
    MeshQuorum,
    NetworkConnector,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    Security,
    SharedDirectory,
    SharedStoreBackup,
    SharedStorePrimary,
    StaticUnicast,
    UDPMulticast,
    Zeroconf,
    ZooKeeperQuorum,
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


#: The settings of high availability and of networks, and what those without a default are given here.
PAIRS_AND_NETWORKS: list[tuple[type[Any], dict[str, Any]]] = [
    (LiveOnly, {}),
    (SharedStorePrimary, {}),
    (SharedStoreBackup, {}),
    (ReplicationPrimary, {}),
    (ReplicationBackup, {}),
    (Colocated, {"primary": SharedStorePrimary(), "backup": SharedStoreBackup()}),
    (ScaleDown, {}),
    (MajorityVote, {}),
    (ZooKeeperQuorum, {"hosts": "127.0.0.1:1"}),
    (MeshQuorum, {"servers": [f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)], "password": "for tests"}),
    (NetworkConnector, {"name": "n", "uri": "static:(tcp://127.0.0.1:1)"}),
]


@pytest.mark.parametrize(("kind", "given"), PAIRS_AND_NETWORKS, ids=[kind.__name__ for kind, _ in PAIRS_AND_NETWORKS])
def test_every_option_of_pairs_and_networks_is_an_attribute_with_the_default_of_the_page(
    kind: type[Any], given: dict[str, Any]
) -> None:
    assert kind in tables().values()
    made = kind(**given)
    # Who a connector is at the other broker is not told again.
    settings, untold = (made, set()) if attrs.has(kind) else (made.settings, {"user", "password", "tls"})
    # The world outside is no option.
    options = {field.alias: field.name for field in attrs.fields(type(settings)) if field.init and field.name != "env"}
    keys = keys_of(kind)
    assert {*keys} - untold == {*options}
    for key in options.keys() - given.keys():
        assert getattr(settings, options[key]) == keys[key].default, key


def rows(kind: type[Any]) -> list[str]:
    """The rows of one table of the page."""
    number = list(tables().values()).index(kind) + 1
    return page().split("\n## ")[number].splitlines()


def test_what_can_not_be_given_in_a_file_is_not_listed() -> None:
    assert [key.name for key in keys_of(Broker).values() if not key.settable] == []
    assert [key.name for key in keys_of(Bridge).values() if not key.settable] == ["transformer"]
    assert [key.name for key in keys_of(ClusterConnection).values() if not key.settable] == []
