"""A connector that is named and not there is told at start, whoever names it."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import (
    Bridge,
    BroadcastGroup,
    Broker,
    BrokerBalancer,
    ClusterConnection,
    LiveOnly,
    ScaleDown,
    SettingsError,
    SharedDirectory,
    StaticPool,
)

LOGIN = {"user": "u", "password": "secret"}
NAMING: dict[str, dict[str, Any]] = {
    "a cluster connection": {
        "services": [ClusterConnection("mesh", connector="me", static_connectors=["gone"], **LOGIN)]
    },
    "its own": {"services": [ClusterConnection("mesh", connector="gone", **LOGIN)]},
    "a group": {"services": [BroadcastGroup("lan", SharedDirectory("/announced", "lan"), connectors=["gone"])]},
    "a bridge": {"services": [Bridge("out", queue="q", target="gone")]},
    "a balancer": {"services": [BrokerBalancer("lb", pool=StaticPool(["me", "gone"]))]},
    "scale-down": {"ha": LiveOnly(scale_down=ScaleDown(connectors=["gone"]))},
}


@pytest.mark.parametrize("who", NAMING)
async def test_a_connector_that_there_is_not_keeps_the_broker_from_starting_and_is_named(who: str) -> None:
    with pytest.raises(SettingsError, match="gone"):
        async with Broker("b", data_dir=None, connectors={"me": "tcp://127.0.0.1:1"}, **NAMING[who]):
            pass
