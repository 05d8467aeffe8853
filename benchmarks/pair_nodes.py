"""A node of a pair in a process of its own, and a client that notices when nobody serves.

The first order says which node it is.  An answer says what the order was to find out; times are those of the machine.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.ours import QUEUE
from benchmarks.workload import Workload
from meshq import (
    Broker,
    ClusterConnection,
    ReplicationBackup,
    ReplicationPrimary,
    SharedStoreBackup,
    SharedStorePrimary,
    connect,
)
from meshq.abc import HAPolicy

NAMES = ("a", "b")
#: Where messages lie that a takeover has to read, and a copy has to carry.
STORED = "stored"
#: Longer than any of these may take.
PATIENCE_S = 200.0
#: Between two messages of the client that notices.
PACE_S = 0.01
#: A node that waits for a shared store has told of itself after so many seconds.
TOLD_S = 0.5
#: Seconds, where settings are given that notice soon.
SOON: dict[str, Any] = {"retry_interval": 0.05, "max_retry_interval": 0.5}
CLIENT_SOON: dict[str, Any] = {"retry_interval": 0.02, "max_retry_interval": 0.1, "connection_ttl": 1.0}
SILENCE: dict[str, Any] = {"connection_ttl": 1.0, "call_timeout": 0.5}
LEASE: dict[str, Any] = {"lease": 1.0, "lock_check_period": 0.02}


def policy_of(name: str, workload: Workload) -> HAPolicy:
    """The policy of a node."""
    first = name == NAMES[0]
    if workload.policy == "shared_store":
        timing = LEASE if workload.tuned else {}
        if first:
            return SharedStorePrimary(wait_for_activation=False, **timing)
        return SharedStoreBackup(**timing)
    timing = SOON if workload.tuned else {}
    if first:
        return ReplicationPrimary(check_for_live_server=True, wait_for_activation=False, **timing)
    return ReplicationBackup(**timing)


def broker_of(name: str, urls: dict[str, str], workload: Workload) -> Broker:
    """The node of a name, whose data is in a directory of that name, or of both."""
    directory = "both" if workload.policy == "shared_store" else name
    others = [url for other, url in urls.items() if other != name]
    timing = SILENCE if workload.tuned else {}
    return Broker(
        name,
        data_dir=str(Path(workload.directory) / directory),
        acceptors=[urls[name]],
        connectors={"own": urls[name]},
        services=[ClusterConnection("pair", connector="own", password="pair", static_connectors=others, **timing)],
        ha=policy_of(name, workload),
    )


class Node:
    """What a node does when it is told to."""

    def __init__(self, broker: Broker, workload: Workload) -> None:
        self._broker = broker
        self._workload = workload
        # When the node has entered a state last, and the last copy that a replica took.
        self._entered: dict[str, float] = {}
        self._copied: dict[str, float] = {}

    async def watch(self) -> None:
        """Note what happens, until cancelled."""
        async for event in self._broker.events():
            if event.kind == "broker_state_changed":
                self._entered[event.state] = time.monotonic()
            elif event.kind == "sync_done":
                self._copied = {"seconds": event.seconds}

    async def ready(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait until this node could take over."""
        if self._workload.policy == "shared_store":
            await self._broker.ha.wait_for(role="backup", timeout=PATIENCE_S)
            await trio.sleep(TOLD_S)
        else:
            await self._broker.ha.wait_for(phase="in_sync", timeout=PATIENCE_S)
        return {}

    async def copied(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait until a replica is in sync; the answer tells of its copy."""
        await self._broker.ha.wait_for(in_sync=True, timeout=PATIENCE_S)
        while "seconds" not in self._copied:  # noqa: ASYNC110 - it is looked at
            await trio.sleep(PACE_S)
        return self._copied

    async def serves(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait until this node serves; the answer says when it has begun to open the store, and when it was done."""
        await self._broker.ha.wait_for(phase="active", timeout=PATIENCE_S)
        while "active" not in self._entered:  # noqa: ASYNC110 - it is looked at
            await trio.sleep(PACE_S)
        return {"opens": self._entered["starting"], "serves": self._entered["active"]}

    async def fill(self, order: dict[str, Any]) -> dict[str, Any]:
        """Store so many messages, as soon as this node serves."""
        body = bytes(self._workload.size)
        await self._broker.ha.wait_for(phase="active", timeout=PATIENCE_S)
        async with self._broker.client() as client:
            await client.create_queue(QUEUE)
            await client.create_queue(STORED)
            # Each by itself, as programs do: many that are sent in one call share a record.
            async with client.producer(STORED) as producer:
                for _ in range(order["count"]):
                    await producer.send(body)
        return {}


async def run_node(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Be told who this is, and do what is asked for until told to stop."""
    order = await parent.meet_async()
    async with trio.open_nursery() as nursery:
        broker = broker_of(order["name"], order["urls"], workload)
        node, answer = Node(broker, workload), dict[str, Any]()
        nursery.start_soon(node.watch)
        await nursery.start(broker.run)
        while (order := await parent.meet_async(**answer))["do"] != "stop":
            answer = await getattr(node, order["do"])(order)
        await broker.stop()
        nursery.cancel_scope.cancel()
    return {}


class Sender:
    """A client that sends one message after the other, and notes when each one was confirmed."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._confirmed: list[float] = []

    async def send(self) -> None:
        """Send until cancelled."""
        while True:
            await self._client.send(QUEUE, b"is anybody there")
            self._confirmed.append(time.monotonic())
            await trio.sleep(PACE_S)

    async def outage(self, since: float, served: float) -> float:
        """Wait for two confirms of a node that serves since a moment; return when the longest gap has ended."""
        with trio.fail_after(PATIENCE_S):
            while len(self._confirmed) < 2 or self._confirmed[-2] < served:  # noqa: ASYNC110 - it is looked at
                await trio.sleep(PACE_S)
        at = [moment for moment in self._confirmed if moment > since]
        _, ended = max((after - before, after) for before, after in zip((since, *at), at, strict=False))
        self._confirmed = self._confirmed[-2:]
        return ended


async def run_sender(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Be told where the nodes are, and send until told to stop."""
    order = await parent.meet_async()
    soon = CLIENT_SOON if workload.tuned else {}
    places = ",".join(order["urls"].values())
    client = connect(f"({places})", reconnect_attempts=math.inf, call_timeout=PATIENCE_S, **soon)
    async with client, trio.open_nursery() as nursery:
        sender, answer = Sender(client), dict[str, Any]()
        nursery.start_soon(sender.send)
        while (order := await parent.meet_async(**answer))["do"] != "stop":
            answer = {"ended": await sender.outage(order["since"], order["served"])}
        nursery.cancel_scope.cancel()
    return {}


if __name__ == "__main__":
    serve({"node": run_node, "sender": run_sender})
