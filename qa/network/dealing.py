"""Two nodes of a cluster behind the connector of one broker, with a durable subscription of one name at both.

Each node has a copy of a topic's message and deals it by its id: one of the two queues gets the message, once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import trio

from meshq import Broker, ClusterConnection, Message, NetworkConnector, abc
from qa.network.shape import KEPT, url
from qa.network.stage import NetworkStage
from qa.simulation.broker import STOP_S

HUB: Final = "hub"
NODES: Final = ("left", "right")
DEALT: Final = "dealt"
MESSAGES: Final = 12
#: Simulated seconds in which the cluster and the links are there, and in which everything has come.
PATIENCE_S: Final = 40.0
#: Seconds after which it is looked whether anything comes twice.
AFTER_S: Final = 3.0


class Dealing:
    """A hub with a cluster behind it, in a network of their own."""

    def __init__(self, stage: NetworkStage) -> None:
        self._stage = stage
        self._rng = stage.simulation.swarm.rng("dealing")

    def _services(self, name: str) -> list[abc.Service]:
        if name == HUB:
            return [
                NetworkConnector(
                    f"to-{node}", f"static:({url(node)})", retry_interval=0.2, connection_ttl=3, check_period=1
                )
                for node in NODES
            ]
        others = [url(node) for node in NODES if node != name]
        return [ClusterConnection("mesh", static_connectors=others, user="u", password="p", retry_interval=0.2)]

    async def check(self) -> None:
        """Check that each message comes to one of the two subscriptions, also over links that break."""
        stage = self._stage
        brokers: dict[str, Broker] = {}
        for name in (HUB, *NODES):
            node = stage.simulation.node(name)
            brokers[name] = Broker(
                name,
                data_dir="/data",
                acceptors=[url(name)],
                services=self._services(name),
                stop_timeout=STOP_S,
                env=node.env,
            )
            node.spawn(brokers[name].run)
        got: dict[str, Counter[str]] = {name: Counter() for name in NODES}
        sent: list[str] = []
        with trio.move_on_after(2 * PATIENCE_S):
            await self._deal(brokers, sent, got)
        both = Counter(sent) - got[NODES[0]] - got[NODES[1]]
        twice = {uid: times for uid, times in (got[NODES[0]] + got[NODES[1]]).items() if times > 1}
        if both or twice or len(sent) < MESSAGES:
            stage.wrong("W6", f"of {len(sent)} dealt to a cluster {[*both][:5]} did not come, and twice {twice}")
        stage.seen("dealt", int(all(got.values())))
        for broker in brokers.values():
            await broker.stop()

    async def _deal(self, brokers: dict[str, Broker], sent: list[str], got: dict[str, Counter[str]]) -> None:
        async with AsyncExitStack() as stack:
            for broker in brokers.values():
                while broker.state != "active":  # noqa: ASYNC110 - looking costs nothing here
                    await trio.sleep(0.1)
            hub = await stack.enter_async_context(brokers[HUB].client())
            await hub.create_address(DEALT, routing="multicast")
            subscribers = {}
            for name in NODES:
                client = await stack.enter_async_context(brokers[name].client())
                made = client.subscribe(DEALT, ack="auto", name=KEPT, durable=True)
                subscribers[name] = await stack.enter_async_context(made)
            for name in NODES:
                await brokers[name].cluster("mesh").wait_for(nodes=2, queues=2, address=DEALT, timeout=PATIENCE_S)
                await brokers[HUB].network(f"to-{name}").wait_for(queue=DEALT, consumers=1, timeout=PATIENCE_S)
            for _ in range(MESSAGES):
                uid = self._stage.new_uid(HUB)
                await hub.send(DEALT, Message(uid.encode()))
                sent.append(uid)
                if self._rng.random() < 0.2:
                    self._stage.reset(HUB, self._rng.choice(NODES))
                await trio.sleep(self._rng.uniform(0.0, 0.3))
            end = trio.current_time() + PATIENCE_S
            while trio.current_time() < end:
                for name, subscriber in subscribers.items():
                    for delivery in await subscriber.receive_many(100, timeout=0.3):
                        got[name][bytes(delivery.body).decode()] += 1
                if sum(map(len, got.values())) >= len(sent):
                    end = min(end, trio.current_time() + AFTER_S)
