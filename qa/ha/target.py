"""A node that is no part of a simulated pair, and gets the messages of a backup that scales down."""

from __future__ import annotations

from typing import Any, Final

import trio

from meshq import Broker, ClusterConnection
from meshq.testing import SimNode

#: The share of the runs in which backups hand over.
LEAVING: Final = 0.25
TARGET: Final = "tcp://target:7001?insecure=true"


async def live_apart(machine: SimNode, service: ClusterConnection) -> None:
    """Be the node to which backups hand over, with a store of its own, until cancelled."""
    about: dict[str, Any] = {"acceptors": [TARGET], "services": [service], "connectors": {"own": TARGET}}
    async with Broker("target", data_dir="/data", env=machine.env, **about):
        await trio.sleep_forever()
