"""Brokers on simulated machines of their own, some of which send their clients on to others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from meshq import Broker, BrokerBalancer, Client, StaticPool, abc, connect
from meshq.client import EventStream
from meshq.testing import MemoryNetwork, NetworkSettings, SimWallClock
from tests.cluster.kit import simulated, until
from tests.process import Process

NETWORK = NetworkSettings(latency_s_min=0.001, latency_s_max=0.001, split_chance=0.0, short_read_chance=0.0)
E = TypeVar("E")
#: How a client of these tests connects, unless a test says otherwise.
FAST: dict[str, Any] = {
    "insecure": True, "connection_ttl": 2.0, "check_period": 0.5, "retry_interval": 0.1, "max_retry_interval": 0.5,
}  # fmt: skip


def url_of(name: str, port: int = 5_000) -> str:
    return f"tcp://{name}:{port}"


def pool_of(names: Iterable[str], **settings: Any) -> StaticPool:
    """A pool of brokers by their names."""
    return StaticPool([url_of(name) for name in names], insecure=True, **{"check_period": 1.0, **settings})


@attrs.define(eq=False)
class Machines:
    """Brokers by name, each on a machine of its own and in memory only."""

    nursery: trio.Nursery
    network: MemoryNetwork = attrs.field(factory=lambda: MemoryNetwork(random.Random(0), NETWORK))
    env: abc.Env = attrs.field(factory=simulated)
    brokers: dict[str, Broker] = attrs.field(factory=dict)
    lives: dict[str, Process] = attrs.field(factory=dict)
    settings: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def machine(self, host: str) -> abc.Env:
        return attrs.evolve(self.env, network=self.network.host(host), local={}, wall=SimWallClock())

    async def start(self, name: str, *services: abc.Service, redirect_to: str = "", **settings: Any) -> Broker:
        """Start a broker; with ``redirect_to`` it has a second acceptor, at port 5001, that redirects."""
        kept = self.settings.setdefault(name, {"services": services, "redirect_to": redirect_to, **settings})
        redirects = kept["redirect_to"]
        urls = [f"{url_of(name)}?insecure=true"]
        if redirects:
            urls.append(f"{url_of(name, 5_001)}?insecure=true&redirect_to={redirects}")
        more = {key: value for key, value in kept.items() if key != "redirect_to"}
        self.lives[name] = Process(self.machine(name))
        made = Broker(name, data_dir=None, env=self.lives[name].env, **{"acceptors": urls, **more})
        self.brokers[name] = made
        await self.nursery.start(self.lives[name].live, made)
        return made

    async def crash(self, *names: str) -> None:
        """Processes die: their kernels close their connections."""
        for name in names:
            self.network.kill_host(name)
            self.lives[name].kill()
        for name in names:
            await self.lives[name].ended()

    async def stop(self, *names: str) -> None:
        """End brokers in peace."""
        for name in names:
            await self.brokers[name].stop()
            await self.lives[name].ended()

    def dial(self, url: str = url_of("front", 5_001), *, host: str = "shop", **settings: Any) -> Client:
        """A client on a machine of its own."""
        env = attrs.evolve(self.env, network=self.network.host(host), local={})
        return connect(url, env=env, **{**FAST, **settings})

    def balancer(self, name: str = "lb", broker: str = "front") -> BrokerBalancer:
        found = self.brokers[broker].service(name)
        assert isinstance(found, BrokerBalancer)
        return found

    async def ready(self, *names: str, name: str = "lb", broker: str = "front") -> None:
        """Wait until just these brokers are ready targets of a balancer."""
        await until(lambda: set(self.ready_now(name, broker)) == set(names))

    def ready_now(self, name: str = "lb", broker: str = "front") -> list[str]:
        rows = self.balancer(name, broker).statistics().targets
        return [row.node_name for row in rows if row.state == "ready"]


@asynccontextmanager
async def machines() -> AsyncIterator[Machines]:
    """Machines without a broker."""
    with trio.fail_after(3_600):
        async with trio.open_nursery() as nursery:
            made = Machines(nursery)
            nursery.start_soon(made.network.run)
            yield made
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def balanced(
    names: str = "abc", *, wait: bool = True, pool: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Machines]:
    """Targets, and a broker ``front`` whose balancer ``lb`` has them in its pool."""
    async with machines() as made:
        for name in names:
            await made.start(name)
        balancer = BrokerBalancer("lb", pool=pool_of(names, **(pool or {})), **settings)
        await made.start("front", balancer, redirect_to="lb")
        if wait:
            await made.ready(*names)
        yield made


def node_of(client: Client) -> str:
    """The broker that a client is connected to; empty: none."""
    about = client.statistics()
    return about.node_name if about.state == "connected" else ""


async def places(made: Machines, count: int, **settings: Any) -> Counter[str]:
    """Where so many clients are, all of them connected at once; each has an id of its own."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(made.dial(client_id=f"{number:03d}-device", **settings))
            for number in range(count)
        ]
        return Counter(map(node_of, clients))


async def place(made: Machines, client_id: str, **settings: Any) -> str:
    """Where a client with an id is."""
    async with made.dial(client_id=client_id, **settings) as client:
        return node_of(client)


async def so_far(events: EventStream[E]) -> list[E]:
    """The events that have happened."""
    found: list[E] = []
    with trio.move_on_after(0.01):
        async for event in events:
            found.append(event)
    return found
