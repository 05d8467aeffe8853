"""Brokers on hosts of their own, in a network and with disks in memory, that can be killed and started again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Bridge, Broker, Client, abc, connect
from meshq.env import real_env
from meshq.message import Message
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk
from tests.process import Process

#: Nothing here takes as long; whatever does is stuck.
PATIENCE_S = 300
URL = "tcp://{}:5000?insecure=true"


class Wall(abc.WallClock):
    """A clock that goes with trio's."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1_000)


@attrs.define(eq=False)
class World:
    """Brokers by name.  ``durable``: their data is on disks."""

    nursery: trio.Nursery
    durable: bool = True
    network: MemoryNetwork = attrs.field(factory=lambda: MemoryNetwork(random.Random(0)))
    disks: dict[str, SimDisk] = attrs.field(factory=dict)
    brokers: dict[str, Broker] = attrs.field(factory=dict)
    #: The settings of each, but for services, which are made anew for each life.
    settings: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    services: dict[str, Callable[[], Sequence[abc.Service]]] = attrs.field(factory=dict)
    #: Threads of hosts on which a call takes its time.
    threads: dict[str, abc.Threads] = attrs.field(factory=dict)
    #: The newest life of each.
    lives: dict[str, Process] = attrs.field(factory=dict)

    def env(self, name: str) -> abc.Env:
        """The outside of a host, over all its lives."""
        disk = self.disks.setdefault(name, SimDisk(random.Random(name)))
        return attrs.evolve(
            real_env(),
            network=self.network.host(name),
            datagrams=self.network.datagrams.host(name),
            disk=disk,
            threads=self.threads.get(name, InlineThreads()),
            wall=Wall(),
            local={},
        )

    async def start(
        self, name: str, services: Callable[[], Sequence[abc.Service]] | None = None, **settings: Any
    ) -> Broker:
        """Start a broker, with what it had before where nothing else is said."""
        if services is not None:
            self.services[name] = services
        kept = self.settings.setdefault(name, {})
        kept.update(settings)
        life = self.lives[name] = Process(self.env(name))
        broker = self.brokers[name] = Broker(
            name,
            **{
                "data_dir": "/data" if self.durable else None,
                "acceptors": [URL.format(name)],
                "services": self.services.get(name, tuple)(),
                "env": life.env,
                **kept,
            },
        )
        await self.nursery.start(life.live, broker)
        return broker

    def lose_power(self, name: str) -> None:
        """A machine goes dark: from here on nothing of its broker is written or sent, and nobody is told."""
        self.network.power_off(name)
        self.lives[name].lose_power(self.disks[name].faults.rng)

    async def kill(self, name: str) -> None:
        """End a broker as its machine's power does."""
        self.lose_power(name)
        await self.lives[name].ended()

    async def stop(self, name: str) -> None:
        """End a broker in peace."""
        await self.brokers[name].stop()
        await self.lives[name].ended()

    def here(self, name: str, **settings: Any) -> Client:
        """A client in a broker's own process."""
        return self.brokers[name].client(**settings)

    def dial(self, name: str, **settings: Any) -> Client:
        """A client on a machine of its own."""
        env = attrs.evolve(real_env(), network=self.network.host("user"), threads=InlineThreads(), local={})
        return connect(URL.format(name), env=env, **settings)

    async def send(self, name: str, address: str, bodies: Iterable[bytes | Message]) -> None:
        """Send, and see it confirmed."""
        async with self.here(name) as client:
            await client.send_many(address, list(bodies))

    async def count(self, name: str, queue: str) -> int:
        """Messages in a queue, held or not; none if there is no such queue."""
        async with self.here(name) as client:
            if queue not in await client.queues():
                return 0
            found = await client.queue(queue)
            return found.ready + found.delivering + found.scheduled + found.delayed

    async def drain(self, name: str, queue: str, *, quiet: float = 20) -> list[bytes]:
        """Take everything that comes to a queue, until nothing came for a while."""
        got: list[bytes] = []
        async with self.here(name) as client, client.consumer(queue) as consumer:
            while batch := await consumer.receive_many(1_000, timeout=quiet):
                got += [delivery.body for delivery in batch]
                await consumer.ack(*batch, confirm=True)
        return got


@asynccontextmanager
async def world(*, durable: bool = True) -> AsyncIterator[World]:
    """A network in which brokers can be started."""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            made = World(nursery, durable)
            nursery.start_soon(made.network.run)
            yield made
            for life in made.lives.values():
                life.kill()
            nursery.cancel_scope.cancel()


async def until(check: Callable[[], Any]) -> None:
    """Wait until something is so; ``check`` may be a coroutine function."""
    with trio.fail_after(PATIENCE_S / 2):
        while True:
            found = check()
            if (found if isinstance(found, bool) else await found) is True:
                return
            await trio.sleep(0.01)


def bridge_to(target: str, name: str = "b", **settings: Any) -> Callable[[], Sequence[abc.Service]]:
    """A bridge from the queue ``out`` to another broker's address ``in``, made anew for each life."""
    about = {"queue": "out", "forwarding_address": "in", "retry_interval": 0.05, **settings}
    return lambda: [Bridge(name, target=target if "://" in target else URL.format(target), **about)]


def bridge_of(broker: Broker) -> Bridge:
    """The bridge that it was given."""
    found = [service for service in broker._settings.services if isinstance(service, Bridge)]
    assert found
    return found[0]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """So many different bodies."""
    return [b"%d" % number for number in range(start, start + count)]


def doubled(bodies: Iterable[bytes]) -> dict[bytes, int]:
    """What is there more than once."""
    return {body: count for body, count in Counter(bodies).items() if count > 1}
