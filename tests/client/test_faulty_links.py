"""Sends through cuts, restarts, silence and thin credit: each message is stored once and in order."""

from __future__ import annotations

import random

import pytest
import trio

from meshq.client import Client, connect
from meshq.errors import MeshqError
from tests.client._server import FakeNetwork, FakeNode, fake_env

SEEDS = range(5)


class Storm:
    """What happens to a node, drawn from a seed."""

    def __init__(self, seed: int, node: FakeNode, network: FakeNetwork) -> None:
        self.random = random.Random(seed)
        self.node = node
        self.network = network
        self.over = False

    async def blow(self, seconds: float) -> None:
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(self.random.uniform(0, 0.4))
            await getattr(self, self.random.choice(("cut", "restart", "down", "silence", "hold", "stop", "thin")))()
        self.over = True
        self.node.credit = 1 << 40
        self.node.confirms = self.node.answers = self.node.stores = True
        self.network.nodes["127.0.0.1", 1] = self.node
        self.node.restart()

    async def cut(self) -> None:
        self.node.cut()

    async def restart(self) -> None:
        self.node.restart()

    async def down(self) -> None:
        self.network.nodes.clear()
        self.node.cut(forget=self.random.random() < 0.5)
        await trio.sleep(self.random.uniform(0, 3))
        self.network.nodes["127.0.0.1", 1] = self.node

    async def silence(self) -> None:
        for stream in self.node.streams:
            stream.silent = True
        await trio.sleep(self.random.uniform(0, 3))

    async def hold(self) -> None:
        self.node.confirms = self.node.answers = False
        await trio.sleep(self.random.uniform(0, 1))
        self.node.confirms = self.node.answers = True
        if self.random.random() < 0.5:
            self.node.release()
        else:
            self.node.restart()

    async def stop(self) -> None:
        self.node.refuse = lambda frame: "stopping"
        await trio.sleep(self.random.uniform(0, 0.5))
        self.node.refuse = lambda frame: None
        for connection in list(self.node.connections):
            connection.close("stopping", "for now")
        self.node.restart()

    async def thin(self) -> None:
        """Credit for a while only by the spoonful."""
        self.node.credit = self.random.choice((0, 1, 3_000))
        self.node.restart()
        for _ in range(5):
            await trio.sleep(self.random.uniform(0, 0.3))
            self.node.give_credit(self.random.choice((1, 5_000, 100_000)))
        self.node.credit = 1 << 40
        self.node.give_credit(0)


async def produce(client: Client, storm: Storm, address: str, taken: list[bytes]) -> None:
    async with client.producer(address, window=storm.random.choice((1, 100, 4_000))) as producer:
        while not storm.over:
            for _ in range(storm.random.choice((1, 10, 300))):
                body = b"%s %d" % (address.encode(), len(taken))
                extra = {"duplicate_id": body, "durable": False} if storm.random.random() < 0.1 else {}
                await producer.send(body, **extra)  # type: ignore[arg-type]
                taken.append(body)
            await trio.sleep(storm.random.uniform(0, 0.2))


async def send(client: Client, storm: Storm, address: str, sent: list[bytes]) -> None:
    number = 0
    while not storm.over:
        number += 1
        body = b"%s %d" % (address.encode(), number)
        await client.send(address, body)
        sent.append(body)
        await trio.sleep(storm.random.uniform(0, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_message_is_stored_once_and_in_order(node: FakeNode, seed: int) -> None:
    env, network = fake_env(node)
    storm = Storm(seed, node, network)
    taken: list[bytes] = []
    sent: list[bytes] = []
    url = "tcp://127.0.0.1:1?connection_ttl=2&confirmation_window=8192&call_timeout=1000&call_failover_timeout=1000"
    async with connect(url, env=env) as client, trio.open_nursery() as nursery:
        nursery.start_soon(storm.blow, 20)
        nursery.start_soon(produce, client, storm, "a", taken)
        nursery.start_soon(send, client, storm, "b", sent)
    for address, expected in (("a", taken), ("b", sent)):
        assert [body for to, _, _, body in node.stored if to == address] == expected
        numbers = [number for to, _, number, _ in node.stored if to == address]
        assert numbers == sorted(set(numbers))
    assert len(taken) > 200
    assert len(sent) > 20
    assert client.statistics().connected > 5


@pytest.mark.parametrize("seed", SEEDS)
async def test_cancelled_sends_and_calls_leave_nothing_behind(node: FakeNode, seed: int) -> None:
    env, network = fake_env(node)
    storm = Storm(seed, node, network)
    url = "tcp://127.0.0.1:1?connection_ttl=2&call_timeout=3&call_failover_timeout=3"
    done: list[bytes] = []
    count = 0

    async def try_things(client: Client) -> None:
        nonlocal count
        while not storm.over:
            await trio.sleep(storm.random.uniform(0, 0.05))
            count += 1
            body = b"%d" % count
            with trio.move_on_after(storm.random.choice((0, 0.01, 0.5))):
                try:
                    match storm.random.randrange(5):
                        case 0:
                            await client.queue("q")
                        case 1:
                            await client.flush()
                        case 2:
                            await client.send_many("a", [body])
                            done.append(body)
                        case 3:
                            async with client.consumer("q") as consumer:
                                await consumer.receive(timeout=0.1)
                        case _:
                            await client.send("a", body)
                            done.append(body)
                except MeshqError:
                    pass

    async with connect(url, env=env) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storm.blow, 20)
            for _ in range(3):
                nursery.start_soon(try_things, client)
        await trio.sleep(10)
        await client.flush()
        statistics = client.statistics()
        assert (statistics.unconfirmed, statistics.waiting_runs, statistics.consumers) == (0, 0, 0)
        assert client._session.deadlines.timed == {}
        assert len(node.session.consumers) == 0
    assert len(node.bodies) == len(set(node.bodies))
    assert set(done) <= set(node.bodies)
    assert len(done) > 20
