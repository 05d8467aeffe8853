"""What holds for the memory network whatever fails, and that a seed decides all of it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from meshq.abc import Stream
from meshq.errors import ConnectionBrokenError
from meshq.testing import MemoryNetwork, NetworkSettings, Simulation, run_seed
from tests.testing.fabrics import running

#: Small enough that buffers fill, and often in pieces.
NERVOUS = NetworkSettings(
    latency_s_min=0.001, latency_s_max=0.5, split_chance=0.3, short_read_chance=0.3, buffer_bytes=700
)
HARMLESS = ("cut", "heal", "slow", "delay", "pause", "resume", "partition")
FATAL = ("reset", "silence", "kill", "power")


def do(fabric: MemoryNetwork, rng: random.Random, kind: str) -> None:
    """One fault."""
    source, target = rng.sample(["client", "server"], 2)
    actions: dict[str, Any] = {
        "cut": lambda: fabric.cut(source, target),
        "heal": fabric.heal,
        "slow": lambda: fabric.slow(source, target, rng.choice([None, 1_000.0])),
        "delay": lambda: fabric.delay(source, target, 0.0, rng.random()),
        "pause": lambda: fabric.pause_host("server"),
        "resume": lambda: fabric.resume_host("server"),
        "partition": lambda: fabric.partition(["client"], ["server"]),
        "reset": lambda: fabric.reset("client", "server"),
        "silence": lambda: fabric.silence("client", "server"),
        "kill": lambda: fabric.kill_host("server"),
        "power": lambda: fabric.power_off("server"),
    }
    actions[kind]()


class Half:
    """One direction of one connection: what was said and what was heard."""

    def __init__(self, source: Stream, target: Stream, rng: random.Random) -> None:
        self.source, self.target, self.rng = source, target, rng
        self.said = bytearray()
        self.heard = bytearray()
        self.ended = ""

    async def say(self) -> None:
        for number in range(40):
            data = (b"%d," % number) * self.rng.randint(1, 200)
            try:
                self.source.send_nowait(data)
                self.said += data
                if self.rng.random() < 0.7:
                    await self.source.flush()
            except ConnectionBrokenError:
                return
            await trio.sleep(self.rng.random() * 0.3)
        try:
            await self.source.flush()
        except ConnectionBrokenError:
            return

    async def hear(self) -> None:
        try:
            while data := await self.target.receive(self.rng.randint(1, 500)):
                self.heard += data
            self.ended = "end"
        except ConnectionBrokenError:
            self.ended = "broken"


async def converse(seed: int, kinds: tuple[str, ...]) -> list[Half]:
    """Talk both ways while things fail; returns what was said and heard."""
    rng = random.Random(seed)
    async with running(NERVOUS, seed) as fabric:
        listener = await fabric.host("server").listen("server", 5000)
        near = await fabric.host("client").connect("server", 5000)
        far = await listener.accept()
        halves = [Half(near, far, random.Random(seed + 1)), Half(far, near, random.Random(seed + 2))]
        async with trio.open_nursery() as nursery:
            for half in halves:
                nursery.start_soon(half.say)
                nursery.start_soon(half.hear)
            for _ in range(6):
                await trio.sleep(rng.random() * 3)
                do(fabric, rng, rng.choice(kinds))
                if kinds is FATAL:
                    break
            await trio.sleep(5)
            if kinds is HARMLESS:
                do(fabric, rng, "resume")
                do(fabric, rng, "heal")
            await trio.sleep(200)
            nursery.cancel_scope.cancel()
        return halves


@pytest.mark.parametrize("seed", range(60))
async def test_what_does_not_break_a_connection_loses_nothing(seed: int) -> None:
    for half in await converse(seed, HARMLESS):
        assert half.ended == ""
        assert len(half.said) > 1_000
        assert half.heard == half.said


@pytest.mark.parametrize("seed", range(60))
async def test_what_is_heard_is_always_the_beginning_of_what_was_said(seed: int) -> None:
    for half in await converse(seed, FATAL):
        assert half.said.startswith(half.heard)


async def dialogue(simulation: Simulation) -> list[tuple[float, bytes]]:
    """A server that echoes to two clients while its host is killed and started; what the clients heard, and when."""
    heard: list[tuple[float, bytes]] = []
    server = simulation.node("server")

    async def serve() -> None:
        listener = await server.env.network.listen("server", 5000)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(echo, await listener.accept())

    async def echo(stream: Stream) -> None:
        try:
            while data := await stream.receive(100):
                stream.send_nowait(data)
        except ConnectionBrokenError:
            stream.close()

    async def ask(name: str) -> None:
        network = simulation.node(name).env.network
        while True:
            try:
                stream = await network.connect("server", 5000)
                for number in range(20):
                    stream.send_nowait(b"%d " % number * 20)
                    heard.append((trio.current_time(), await stream.receive(100)))
                    await trio.sleep(0.1)
            except ConnectionBrokenError:
                await trio.sleep(0.5)

    for name in ("one", "two"):
        simulation.node(name).spawn(ask, name)
    for _ in range(3):
        server.spawn(serve)
        await trio.sleep(3)
        server.kill()
        await trio.sleep(1)
        server.start()
    return heard


def test_a_seed_decides_all_of_a_network() -> None:
    def run(seed: int) -> tuple[int, Any, dict[str, int]]:
        result = run_seed(seed, dialogue, network=lambda s: MemoryNetwork(s.swarm.rng("net"), NERVOUS)).check()
        return result.trace, result.value, result.counters

    first, again, other = run(1), run(1), run(2)
    assert first == again
    assert first[1] != other[1]
    assert len(first[1]) > 20
    assert first[2]["network.kill_host"] == 3


async def test_nothing_is_left_of_connections_that_ended() -> None:
    async with running(NERVOUS) as fabric:
        listener = await fabric.host("server").listen("server", 5000)
        for _ in range(20):
            near = await fabric.host("client").connect("server", 5000)
            far = await listener.accept()
            near.send_nowait(bytes(100))
            await far.receive(1)
            near.close()
            far.close()
        await trio.sleep(200)
        assert repr(fabric) == "<MemoryNetwork hosts=2 events=0>"
        for name in ("client", "server"):
            host = fabric.find(name)
            assert repr(host) == f"<NetworkHost {name} running streams=0>"
