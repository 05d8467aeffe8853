"""A broker of a network in a process of its own: it forwards to the next one, or has many consumers.

The first order names the broker and the URL of the next one.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.ours import ACCEPTOR, QUEUE
from benchmarks.workload import Workload
from meshq import Broker, Client, NetworkConnector

CONNECTOR = "onward"
#: Longer than any of this may take.
PATIENCE_S = 120.0
#: Consumers of one client.
CONSUMERS = 1_000
#: Between two looks at something that nobody tells of.
LOOK_S = 0.005


def connector(workload: Workload, onward: str) -> NetworkConnector:
    """The connector to the next broker, with as many messages under way as a producer has."""
    ttl = max(1, workload.nodes - 1)
    return NetworkConnector(CONNECTOR, f"static:({onward})", network_ttl=ttl, prefetch=workload.window)


async def consume(client: Client, names: list[str], stack: AsyncExitStack) -> None:
    """Have a consumer on each of these queues."""
    for name in names:
        await stack.enter_async_context(client.consumer(name, window=1))


async def heard(broker: Broker, count: int) -> float:
    """Wait until the connector knows so many subscriptions; returns how long it took."""
    started = time.monotonic()
    link = broker.network(CONNECTOR)
    with trio.fail_after(PATIENCE_S):
        while len(link.subscriptions()) < count:  # noqa: ASYNC110 - it has to be looked at
            await trio.sleep(LOOK_S)
    return time.monotonic() - started


async def run_broker(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Be told who this is, and serve until told to stop."""
    order = await parent.meet_async()
    name, onward = order["name"], order["onward"]
    # To open so many consumers on new queues of a disk takes minutes, and says nothing of demand.
    data_dir = str(Path(workload.directory) / name) if workload.kind != "demand" else None
    broker = Broker(name, data_dir=data_dir, acceptors=[ACCEPTOR])
    async with broker, broker.client() as client, AsyncExitStack() as stack:
        if workload.kind == "demand":
            return await tell_demand(workload, parent, broker, onward, stack)
        await client.create_queue(QUEUE)
        if onward:
            await broker.add_network(connector(workload, onward))
            await broker.network(CONNECTOR).wait_for(queue=QUEUE, consumers=1, timeout=PATIENCE_S)
        await parent.meet_async(url=broker.urls[0])
        return {"added": (await client.queue(QUEUE)).added}


async def tell_demand(
    workload: Workload, parent: ChildEnd, broker: Broker, onward: str, stack: AsyncExitStack
) -> dict[str, Any]:
    """Have the consumers, or hear of them; twice, the second time by a connector of a broker that is at rest."""
    if not onward:
        names = [f"q{number}" for number in range(workload.queues)]
        for start in range(0, len(names), CONSUMERS):
            client = await stack.enter_async_context(broker.client())
            await consume(client, names[start : start + CONSUMERS], stack)
        await parent.meet_async(url=broker.urls[0])
        return {}
    parent.say(url=broker.urls[0])
    await broker.add_network(connector(workload, onward))
    await parent.meet_async(linked=await heard(broker, workload.queues))
    await broker.remove_network(CONNECTOR)
    await broker.add_network(connector(workload, onward))
    await parent.meet_async(linked=await heard(broker, workload.queues))
    return {}


if __name__ == "__main__":
    serve({"broker": run_broker})
