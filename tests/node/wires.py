"""A broker and its clients on machines of their own, between which frames can be lost: it is killed for true."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs
import trio

from meshq import Client, abc, connect
from meshq.settings import Acceptor
from meshq.testing import MemoryNetwork, NetworkSettings
from tests.node.lives import Lives, TrioWall, lives, machine
from tests.process import End

#: A millisecond each way, and nothing that is not asked for.
NETWORK = NetworkSettings(latency_s_min=0.001, latency_s_max=0.001, split_chance=0.0, short_read_chance=0.0)
URL = "tcp://hq:5000?insecure=true"
#: Longer than a call takes here, with all that it waits for.
CALL_S = 0.05


@attrs.define(eq=False)
class Dials(abc.Network):
    """The network of a client's machine: when it dialed, and what it got."""

    inner: abc.Network
    dialed_at: list[float] = attrs.field(factory=list)
    streams: list[abc.Stream] = attrs.field(factory=list)

    async def connect(self, host: str, port: int) -> abc.Stream:
        self.dialed_at.append(trio.current_time())
        self.streams.append(stream := await self.inner.connect(host, port))
        return stream

    async def listen(self, host: str, port: int) -> abc.Listener:
        return await self.inner.listen(host, port)


@attrs.define(eq=False)
class Wires:
    """A broker on the machine ``hq``, life after life, and clients on the machine ``client``."""

    node: Lives
    network: MemoryNetwork
    dials: Dials
    env: abc.Env

    def client(self, url: str = URL, **settings: Any) -> Client:
        """A client that comes back."""
        return connect(url, **{"env": self.env, "retry_interval": 0.01, **settings})

    def lose(self, what: Literal["request", "reply"]) -> None:
        """Whatever goes one way on the connections that there are now is lost, and nobody is told."""
        for stream in self.network._ends("client", "hq"):
            if stream in self.dials.streams:
                assert stream.inbound is not None
                (stream.outbound if what == "request" else stream.inbound).silent = True

    async def again(self, end: End = "killed") -> None:
        """End this life and begin another one; the client's machine learns of it."""
        await self.node.end(end)
        for stream in self.dials.streams:
            stream.close()
        await self.node.start()


@asynccontextmanager
async def wires(**settings: Any) -> AsyncIterator[Wires]:
    """A broker that can be reached over a network only."""
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(random.Random(0), NETWORK)
        nursery.start_soon(network.run)
        acceptors = [Acceptor("tcp://hq:5000", insecure=True)]
        outside = machine(network=network.host("hq"), wall=TrioWall())
        dials = Dials(network.host("client"))
        async with lives(env=outside, **{"acceptors": acceptors, **settings}) as node:
            yield Wires(node, network, dials, machine(network=dials, wall=TrioWall()))
        nursery.cancel_scope.cancel()
