"""meshq under the benchmark's workloads, through its public API as the README shows it.

One ``producer.send`` per message, ``receive_many``, every message acknowledged, and the acknowledgements confirmed
at the end by ``client.flush()``.  The broker is a process of its own on ``tcp://127.0.0.1:0``, except in the
in-process rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import ChildEnd, serve
from benchmarks.timer import Timer
from benchmarks.workload import NUMBER, LatencyClock, Workload, received
from meshq import AddressSettings, Broker, ClusterConnection, connect

QUEUE = "orders"
CLUSTER = "mesh"
CONNECTOR = "here"
ACCEPTOR = "tcp://127.0.0.1:0"
RECEIVE_COUNT = 1_000
#: Longer than any stall that still counts as working.
RECEIVE_SECONDS = 30.0


class SyncCounter:
    """Counts what this process asks of the disk, whoever in it asks."""

    def __init__(self) -> None:
        self.syncs = 0
        os.fdatasync = self._counted(os.fdatasync)
        os.fsync = self._counted(os.fsync)

    def _counted(self, sync: Callable[[Any], None]) -> Any:
        def counted(descriptor: Any) -> None:
            self.syncs += 1
            sync(descriptor)

        return counted


def broker_of(workload: Workload) -> Broker:
    """A broker with a store, on a directory of this run's own; durability is asked for message by message."""
    return made("data", workload, [mesh()] if workload.kind == "forward" else [])


def near_broker_of(workload: Workload) -> Broker:
    """A broker that forwards to the one at the workload's URL, which has nothing to forward back."""
    return made("near", workload, [mesh(workload.url)])


def made(name: str, workload: Workload, services: Sequence[ClusterConnection]) -> Broker:
    """The node whose data is in the directory of that name."""
    directory = Path(workload.directory) / name
    options: dict[str, Any] = {}
    if workload.page_at:
        options["address_settings"] = {QUEUE: AddressSettings(max_size_bytes=workload.page_at, full_policy="page")}
    return Broker(
        name,
        data_dir=str(directory),
        acceptors=[ACCEPTOR],
        connectors={CONNECTOR: ACCEPTOR},
        services=services,
        **options,
    )


def mesh(*others: str) -> ClusterConnection:
    """A cluster connection to these nodes; without any it only lets others forward to this one."""
    return ClusterConnection(
        CLUSTER, connector=CONNECTOR, static_connectors=others, user="benchmark", password="forwarding"
    )


async def run_broker(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Serve until told to stop."""
    counter = SyncCounter()
    fresh = not (Path(workload.directory) / "data").exists()
    async with broker_of(workload) as broker:
        if fresh:
            async with broker.client() as client:
                for name in [QUEUE, *(f"idle.{number}" for number in range(workload.queues))]:
                    await client.create_queue(name)
        before = counter.syncs
        await parent.meet_async(url=broker.urls[0])
        syncs = counter.syncs - before
        async with broker.client() as client:
            added = (await client.queue(QUEUE)).added
    return {"syncs": syncs, "added": added}


async def run_near_broker(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Serve until told to stop; ready when it knows that somebody consumes at the other broker."""
    counter = SyncCounter()
    async with near_broker_of(workload) as broker:
        async with broker.client() as client:
            await client.create_queue(QUEUE)
        await broker.cluster(CLUSTER).wait_for(nodes=2, queue=QUEUE, consumers=1, timeout=RECEIVE_SECONDS)
        before = counter.syncs
        await parent.meet_async(url=broker.urls[0])
        return {"syncs": counter.syncs - before}


def extras(workload: Workload, number: int) -> dict[str, Any]:
    """What goes with one message beside its body."""
    options: dict[str, Any] = {}
    if not workload.durable:
        options["durable"] = False
    if workload.properties:
        options["properties"] = {f"property{at}": f"value {number % 100}" for at in range(workload.properties)}
    if workload.duplicate_ids:
        options["duplicate_id"] = f"order-{number}"
    if workload.priorities:
        options["priority"] = number % workload.priorities
    return options


async def run_producer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    body = bytes(workload.size)
    plain = not (workload.properties or workload.duplicate_ids or workload.priorities)
    options = extras(workload, 0)
    async with connect(workload.url) as client:
        await parent.meet_async()
        clock, timer = LatencyClock(workload.rate), Timer()
        started = time.monotonic()
        if workload.kind == "one":
            for _ in range(workload.count):
                await client.send(QUEUE, body, **options)
        elif workload.transaction:
            for _ in range(workload.count // workload.transaction):
                async with client.transaction() as transaction:
                    for _ in range(workload.transaction):
                        await transaction.send(QUEUE, body, **options)
        else:
            async with client.producer(QUEUE) as producer:
                for number in range(workload.count):
                    if workload.rate:
                        await timer.sleep(clock.pause())
                        body = clock.stamp(workload.size)
                    if workload.kind == "forward":
                        body = NUMBER.pack(number).ljust(workload.size, b"\0")
                    if plain:
                        await producer.send(body, **options)
                    else:
                        await producer.send(body, **extras(workload, number))
        return {"started": started, "ended": time.monotonic()}


async def consume(client: Any, workload: Workload, clock: LatencyClock | None = None) -> dict[str, Any]:
    """Receive and acknowledge everything; the report is made when the acknowledgements are stored."""
    count = total = seen = 0
    first: float | None = None
    numbers: set[bytes] = set()
    options = {"filter": workload.filter} if workload.filter else {}
    async with client.consumer(QUEUE, **options) as consumer:
        while count < workload.count:
            batch = await consumer.receive_many(RECEIVE_COUNT, timeout=RECEIVE_SECONDS)
            if not batch:
                raise RuntimeError(f"nothing for {RECEIVE_SECONDS} s after {count} of {workload.count} messages")
            if first is None:
                first = time.monotonic()
            if clock is not None:
                clock.arrived(delivery.body for delivery in batch)
            total += sum(len(delivery.body) for delivery in batch)
            if workload.kind == "forward":
                numbers.update(delivery.body for delivery in batch)
            if workload.properties:
                seen += sum("property0" in delivery.properties for delivery in batch)
            count += len(batch)
            await consumer.ack(*batch)
        await client.flush()
    if workload.kind == "forward" and len(numbers) != count:
        raise RuntimeError(f"{count - len(numbers)} of {count} messages came more than once")
    if workload.properties and seen != count:
        raise RuntimeError(f"{count - seen} of {count} messages arrived without their properties")
    return received(workload, count, total, clock) | {"first": first}


async def run_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    async with connect(workload.url) as client:
        clock = LatencyClock(workload.rate)
        await parent.meet_async()
        return await consume(client, workload, clock)


async def run_late_consumer(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Connect only when told where to: this interpreter is up before the broker is."""
    facts = await parent.meet_async()
    async with connect(facts["url"]) as client:
        return await consume(client, workload)


async def run_inside(workload: Workload, parent: ChildEnd) -> dict[str, Any]:
    """Broker, producers and consumer in one process, by in-process clients."""
    counter = SyncCounter()
    body = bytes(workload.size)
    share = workload.count // workload.tasks

    async def produce(client: Any) -> None:
        options = extras(workload, 0)
        if workload.frame == 1:
            for _ in range(share):
                await client.send(QUEUE, body, **options)
            return
        for _ in range(share // workload.frame):
            await client.send_many(QUEUE, [body] * workload.frame, **options)

    async with broker_of(workload) as broker, broker.client() as sender, broker.client() as receiver:
        await sender.create_queue(QUEUE)
        await parent.meet_async()
        before = counter.syncs
        started = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(workload.tasks):
                nursery.start_soon(produce, sender)
            result = await consume(receiver, workload)
        return result | {"started": started, "syncs": counter.syncs - before}


ROLES = {
    "broker": run_broker,
    "near-broker": run_near_broker,
    "producer": run_producer,
    "consumer": run_consumer,
    "late-consumer": run_late_consumer,
    "inprocess": run_inside,
}

if __name__ == "__main__":
    serve(ROLES)
