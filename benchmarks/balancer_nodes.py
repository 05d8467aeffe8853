"""The processes of a measured balancer: targets, the front that sends clients on, and the clients."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.workload import Workload
from meshq import Broker, BrokerBalancer, Client, LeastConnections, StaticPool, connect

BALANCER = "lb"
QUEUE = "orders"
#: Clients that connect at the same time; no listen queue overflows.
AT_ONCE = 100
#: Of the whole run, and of one connection in it.
PATIENCE_S = 300.0


def target_of(name: str, port: int, workload: Workload) -> Broker:
    """The target of this name, whose data is in a directory of that name."""
    return Broker(name, data_dir=str(Path(workload.directory) / name), acceptors=[f"tcp://127.0.0.1:{port}"])


async def run_target(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Serve under the name and at the port that the parent tells, until told to stop; the answer counts messages."""
    order = await parent.meet_async()
    async with target_of(order["name"], order["port"], workload) as broker, broker.client() as client:
        if order["fresh"]:
            await client.create_queue(QUEUE)
        await parent.meet_async(url=broker.urls[0])
        return {"added": (await client.queue(QUEUE)).added}


async def run_front(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Redirect clients to the targets that the parent tells, until told to stop."""
    targets = (await parent.meet_async())["targets"]
    pool = StaticPool(targets, quorum_size=len(targets), check_period=1.0)
    # A key is served anew each time: what is measured is the policy.
    balancer = BrokerBalancer(BALANCER, target_key="client_id", policy=LeastConnections(), pool=pool, cache_timeout=0.0)
    acceptor = f"tcp://127.0.0.1:0?redirect_to={BALANCER}"
    async with Broker("front", data_dir=None, acceptors=[acceptor], services=[balancer]) as broker:
        with trio.fail_after(PATIENCE_S):
            while broker.balancer(BALANCER).statistics().ready < len(targets):  # noqa: ASYNC110 - it has to be looked at
                await trio.sleep(0.01)
        await parent.meet_async(url=broker.urls[0])
        return {"redirected": broker.balancer(BALANCER).statistics().redirected}


def dial(url: str, number: int) -> Client:
    """A client at the front, which comes again for as long as it takes."""
    return connect(
        url, client_id=f"device-{number}", use_topology=False, retry_interval=0.1, call_timeout=PATIENCE_S,
        initial_connect_attempts=math.inf, reconnect_attempts=math.inf,
    )  # fmt: skip


async def run_senders(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Connect so many clients at the front, a hundred at a time; each sends one message and goes."""
    url = (await parent.meet_async())["url"]
    waiting, took = iter(range(workload.count)), []

    async def work() -> None:
        for number in waiting:
            began = time.monotonic()
            async with dial(url, number) as client:
                await client.send(QUEUE, b"%d" % number)
                took.append(time.monotonic() - began)

    started = time.monotonic()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, workload.count)):
                nursery.start_soon(work)
    took.sort()
    middle, last = (took[min(len(took) - 1, int(len(took) * share))] * 1_000 for share in (0.5, 0.99))
    return {"seconds": time.monotonic() - started, "p50_ms": middle, "p99_ms": last}


async def run_holders(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Connect so many clients and hold them while their brokers die; say where they are, before and after."""
    url = (await parent.meet_async())["url"]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            clients: list[Client] = []
            limit = trio.CapacityLimiter(AT_ONCE)

            async def hold(number: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                async with AsyncExitStack() as stack:
                    async with limit:
                        clients.append(await stack.enter_async_context(dial(url, number)))
                    task_status.started()
                    await trio.sleep_forever()

            async with trio.open_nursery() as connecting:
                for number in range(workload.count):
                    connecting.start_soon(nursery.start, hold, number)
            places = [Counter(client.statistics().node_name for client in clients)]
            began = [client.statistics().connected for client in clients]
            await parent.meet_async(places=places)
            started = time.monotonic()

            def back(client: Client, before: int) -> bool:
                now = client.statistics()
                return now.state == "connected" and now.connected > before

            while not all(map(back, clients, began)):  # noqa: ASYNC110 - it has to be looked at
                await trio.sleep(0.05)
            seconds = time.monotonic() - started
            places.append(Counter(client.statistics().node_name for client in clients))
            nursery.cancel_scope.cancel()
    return {"places": places, "seconds": seconds}


if __name__ == "__main__":
    serve({"target": run_target, "front": run_front, "senders": run_senders, "holders": run_holders})
