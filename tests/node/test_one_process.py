"""Several brokers in one process: how they start and stop, and that they have nothing in common."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from meshq import Bridge, Broker, ClusterConnection, connect
from meshq.abc import Env, Threads
from meshq.testing._node import NoNetwork
from tests.node.lives import bodies, machine


def without_network() -> Env:
    """A machine on which any socket is an error."""
    return machine(network=NoNetwork())


def peer(name: str, other: str) -> ClusterConnection:
    login = {"user": "u", "password": "p"}
    return ClusterConnection("mesh", connector=name, static_connectors=[other], retry_interval=0.01, **login)


async def test_brokers_and_clients_of_one_process_are_connected_by_name_without_a_socket() -> None:
    env = without_network()
    connectors = {"a": "inproc://a", "b": "inproc://b"}
    both: dict[str, Any] = {"env": env, "data_dir": None, "connectors": connectors}
    bridge = Bridge("out", queue="out", target="b", forwarding_address="in")
    async with (
        Broker("a", services=[peer("a", "b"), bridge], **both) as a,
        Broker("b", services=[peer("b", "a")], **both) as b,
        connect("inproc://a", env=env) as here,
        connect("inproc://b", env=env) as there,
    ):
        await here.create_queue("orders")
        async with there.consumer("orders") as consumer:
            await a.cluster("mesh").wait_for(nodes=2, queue="orders", consumers=1, timeout=10)
            await here.send("orders", b"over the cluster")
            assert await bodies(consumer) == [b"over the cluster"]
        await here.send("out", b"over the bridge")
        async with there.consumer("in") as consumer:
            assert await bodies(consumer) == [b"over the bridge"]
        assert a.urls == b.urls == []


@pytest.mark.slow
async def test_a_client_of_the_same_process_may_be_silent_for_hours() -> None:
    async with Broker("hq", data_dir=None, env=without_network()) as broker, broker.client() as client:
        await client.send("q", b"before")
        await trio.sleep(6 * 3_600)
        await client.send("q", b"after")
        assert (client.statistics().connected, broker.statistics().sessions_expired) == (1, 0)


@pytest.mark.parametrize("seed", range(3))
async def test_ten_brokers_stop_in_any_order_share_nothing_and_leave_no_task(seed: int) -> None:
    rng = random.Random(seed)
    tasks = trio.lowlevel.current_statistics().tasks_living
    env = without_network()
    brokers = [
        Broker(f"n{number}", data_dir=f"/data/n{number}" if number % 2 else None, env=env) for number in range(10)
    ]
    async with trio.open_nursery() as nursery:
        for broker in brokers:
            await nursery.start(broker.run)
        for broker in brokers:
            async with broker.client() as client:
                await client.send(f"of {broker.name}", broker.name.encode())
        assert len({broker.node_id for broker in brokers}) == 10
        rng.shuffle(brokers)
        while brokers:
            await brokers.pop().stop()
            for broker in brokers:
                async with connect(f"inproc://{broker.name}", env=env) as client:
                    assert await client.queues() == [f"of {broker.name}"]
                    await client.send(f"of {broker.name}", b"still here")
                    assert (await client.queue(f"of {broker.name}")).ready == 11 - len(brokers)
    assert env.local == {}
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == tasks


@attrs.define(eq=False)
class GatedThreads(Threads):
    """Threads that wait at a gate."""

    inner: Threads
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, function: Any, *arguments: Any, pool: str = "default") -> Any:
        await self.gate.wait()
        return await self.inner.run(function, *arguments, pool=pool)

    def idle(self) -> bool:
        return self.inner.idle()


@pytest.mark.parametrize("way", ["block", "task"])
async def test_a_start_returns_when_the_node_is_active_and_not_before(way: str) -> None:
    env = machine()
    threads = GatedThreads(env.threads)
    broker = Broker("hq", data_dir="/data/hq", env=attrs.evolve(env, threads=threads))
    entered = trio.Event()
    async with trio.open_nursery() as nursery:

        async def start() -> None:
            if way == "task":
                await nursery.start(broker.run)
                entered.set()
                return
            async with broker:
                entered.set()
                await trio.sleep_forever()

        nursery.start_soon(start)
        await trio.sleep(60)
        assert (broker.state, entered.is_set()) == ("starting", False)
        threads.gate.set()
        await entered.wait()
        assert broker.state == "active"
        await broker.stop()
        nursery.cancel_scope.cancel()
