"""Links of a cluster over which nothing comes any more: when they are given up, and what becomes of what was dealt."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio

from meshq import Broker, Client, ClusterConnection, NodeJoined
from meshq.env import real_env
from meshq.settings import Acceptor
from meshq.testing import InlineThreads, MemoryNetwork, NetworkSettings, SimDisk

NETWORK = NetworkSettings(latency_s_min=0.001, latency_s_max=0.001, split_chance=0.0, short_read_chance=0.0)
URLS = {name: f"tcp://{name}:5000?insecure=true" for name in "ab"}


class Pair:
    """Two nodes on hosts of their own, joined by cluster connections with ``settings``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.joined = dict.fromkeys("ab", 0)
        self.network = MemoryNetwork(random.Random(0), NETWORK)
        self.brokers = {name: self._broker(name, settings) for name in "ab"}

    def _broker(self, name: str, settings: dict[str, Any]) -> Broker:
        (other,) = set(URLS) - {name}
        mesh = ClusterConnection(
            "mesh",
            connector=name,
            static_connectors=[other],
            load_balancing="strict",
            user="u",
            password="p",
            retry_interval=0.01,
            **settings,
        )
        env = attrs.evolve(real_env(), disk=SimDisk().mount(), threads=InlineThreads(), local={})
        return Broker(
            name,
            data_dir=f"/data/{name}",
            acceptors=[Acceptor(f"tcp://{name}:5000", insecure=True)],
            connectors=URLS,
            services=[mesh],
            queues=["q"],
            env=attrs.evolve(env, network=self.network.host(name)),
        )

    async def count(self, name: str) -> None:
        """Count how often a node is linked with the other one."""
        async for event in self.brokers[name].events():
            self.joined[name] += isinstance(event, NodeJoined)

    def client(self, name: str) -> Client:
        return self.brokers[name].client()


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "ttl"), [({}, 60), ({"connection_ttl": 5.0, "check_period": 1.0}, 5)])
async def test_a_silent_link_is_given_up_after_its_time_to_live_and_what_was_dealt_arrives_once(
    settings: dict[str, Any], ttl: float
) -> None:
    pair = Pair(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.network.run)
        for name in pair.brokers:
            nursery.start_soon(pair.count, name)
        for broker in pair.brokers.values():
            await nursery.start(broker.run)
        for broker in pair.brokers.values():
            await broker.cluster("mesh").wait_for(nodes=2, queue="q", timeout=5)
        check_period = pair.brokers["a"].cluster("mesh").settings.check_period
        # A link that only says that it is there is kept.
        await trio.sleep(20 * ttl)
        assert pair.joined == {"a": 1, "b": 1}
        async with pair.client("a") as client, pair.client("b") as other:
            # Each has just heard the other.
            await client.send_many("q", [b"0", b"1"])
            await other.send_many("q", [b"2", b"3"])
            await trio.sleep(0.1)
            began = trio.current_time()
            pair.network.silence("a", "b")
            await client.send_many("q", [b"%d" % number for number in range(4, 10)])
            for _ in range(1_000):
                if pair.joined == {"a": 2, "b": 2}:
                    # The session that was silent is not gone on with: what was under way is dealt with anew.
                    break
                await trio.sleep(0.1)
            assert ttl - 0.5 <= trio.current_time() - began <= ttl + check_period
            await trio.sleep(5)
            found = []
            for at in (client, other):
                async with at.consumer("q") as consumer:
                    found += [delivery.body for delivery in await consumer.receive_many(100, timeout=1)]
            assert sorted(found) == [b"%d" % number for number in range(10)]
        nursery.cancel_scope.cancel()
