"""Brokers in one process that can be started again, and clients that come back to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Broker, Client, Consumer, abc, connect
from meshq.env import real_env
from meshq.testing import SimDisk
from tests.process import End, Process, SlowThreads


class TrioWall(abc.WallClock):
    """The time of day goes as trio's clock does, jumps included."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1000)


def machine(**parts: Any) -> abc.Env:
    """The outside of one machine, with an empty disk."""
    return attrs.evolve(real_env(), disk=SimDisk(), threads=SlowThreads(), local={}, **parts)


@attrs.define(eq=False)
class Lives:
    """One broker, life after life."""

    nursery: trio.Nursery
    env: abc.Env
    settings: dict[str, Any]
    broker: Broker = attrs.field(init=False)
    process: Process = attrs.field(init=False)

    async def start(self) -> None:
        """Begin a life."""
        self.process = Process(self.env)
        self.broker = Broker(**{"name": "hq", "env": self.process.env, "data_dir": "/data/hq", **self.settings})
        await self.nursery.start(self.process.live, self.broker)

    async def again(self, *, killed: bool = False, end: End = "stopped") -> None:
        """End this life, in peace, by SIGKILL (``killed``) or with the machine's power, and begin another."""
        await self.end("killed" if killed else end)
        await self.start()

    async def end(self, end: End) -> None:
        """End this life; whoever is connected is told only if it ends in peace."""
        if end == "stopped":
            await self.broker.stop()
        await self.process.end(end)

    def client(self, **settings: Any) -> Client:
        """A client that comes back."""
        return connect("inproc://hq", env=self.env, retry_interval=0.01, **settings)


@asynccontextmanager
async def lives(*, env: abc.Env | None = None, **settings: Any) -> AsyncIterator[Lives]:
    """A broker that lives."""
    async with trio.open_nursery() as nursery:
        found = Lives(nursery, env or machine(), settings)
        await found.start()
        yield found
        await found.broker.stop()


async def bodies(consumer: Consumer, quiet: float = 0.5) -> list[bytes]:
    """All that comes until nothing came for a while, acknowledged."""
    got: list[bytes] = []
    while batch := await consumer.receive_many(1_000, timeout=quiet):
        got += [delivery.body for delivery in batch]
        await consumer.ack(*batch, confirm=True)
    return got
