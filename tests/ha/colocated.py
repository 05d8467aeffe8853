"""Brokers that run the backups of each other, on one network and one disk."""

from __future__ import annotations

from typing import Any

import trio

from meshq import (
    Broker,
    ClusterConnection,
    Colocated,
    SharedStoreBackup,
    SharedStorePrimary,
)
from tests.ha.test_shared_store_brokers import Pair, start

PORTS = {"a": 7001, "b": 7002, "c": 7003, "d": 7004}
URLS = {name: f"tcp://127.0.0.1:{port}" for name, port in PORTS.items()}
#: Few looks at the store in a simulated second.
CALM: dict[str, Any] = {"lease": 2.0, "lock_check_period": 0.5}


def shared(primary: Any = None, backup: Any = None, **settings: Any) -> Colocated:
    """The policy of a node with a shared store, which asks for a backup."""
    return Colocated(
        primary=SharedStorePrimary(**CALM, **(primary or {})),
        backup=SharedStoreBackup(**CALM, **(backup or {})),
        **{"request_backup": True, **settings},
    )


def broker(ground: Pair, name: str, policy: Colocated, **settings: Any) -> Broker:
    """A node with a directory of its own that knows all others; ``cluster``: more of its cluster connection."""
    others = [url for other, url in URLS.items() if other != name]
    about = {"static_connectors": others, "retry_interval": 0.2, "max_retry_interval": 1.0}
    cluster = ClusterConnection("c", password="p", **{**about, **settings.pop("cluster", {})})
    given = {
        "data_dir": f"/{name}",
        "node_id": name.encode() * 16,
        "services": [cluster],
        "acceptors": [URLS[name]],
        **settings,
    }
    return Broker(name, **{"ha": policy, "env": ground.env(), **given})


async def until(condition: Any, seconds: float = 30) -> None:
    """Wait until something is so."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is looked at has no signal of its own
            await trio.sleep(0.05)


async def started(ground: Pair, nursery: trio.Nursery, names: str, policy: Colocated, **settings: Any) -> list[Broker]:
    """Start nodes, and wait until each of them has a backup that is ready."""
    nodes = [await start(ground, nursery, broker(ground, name, policy, **settings)) for name in names]
    ready = ("waiting", "in_sync")
    await until(lambda: sum(one.phase in ready for node in nodes for one in node.ha.hosted) == len(nodes))
    return nodes
