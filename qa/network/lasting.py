"""A durable subscription at one broker of the network, over all faults: each confirmed message for it comes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from meshq import Client, MeshqError, Message
from qa.network.shape import KEPT, LASTING

if TYPE_CHECKING:
    from qa.network.scenario import NetworkNode, SimulatedNetwork

#: Simulated seconds in which each broker has heard of the subscription, and in which all that is owed comes.
PATIENCE_S: Final = 40.0


class LastingSubscription:
    """The durable subscription, and the messages confirmed to senders since each broker knows of it."""

    def __init__(self, stage: SimulatedNetwork) -> None:
        self._stage = stage
        self.rng = stage.simulation.swarm.rng("lasting")
        self.keeper: NetworkNode = stage.nodes[self.rng.choice(stage.shape.names)]
        self._confirmed: set[str] = set()
        self._got: Counter[str] = Counter()
        #: The subscription is there, and each broker has heard of it.
        self.known = False

    async def begin(self) -> None:
        """Make the subscription, and wait until messages from each broker come to it."""
        names = set(self._stage.shape.names)
        with trio.move_on_after(PATIENCE_S):
            while not names <= {uid.partition("-")[0] for uid in self._got}:
                await self._receive(0.2)
                await self._publish_everywhere()
            self._confirmed.clear()
            self.known = True
        if not self.known:
            self._stage.wrong("W7", f"not every broker has heard of the subscription at {self.keeper.name}")

    async def publish(self, node: NetworkNode, client: Client) -> None:
        """Send a message to the topic at a broker."""
        uid = self._stage.new_uid(node.name)
        await client.send(LASTING, Message(uid.encode()))
        self._confirmed.add(uid)

    async def _publish_everywhere(self) -> None:
        for name in self._stage.shape.names:
            node = self._stage.nodes[name]
            with suppress(MeshqError):
                async with node.broker.client() as client:
                    await client.create_address(LASTING, routing="multicast")
                    await self.publish(node, client)

    async def _receive(self, seconds: float) -> None:
        with suppress(MeshqError):
            async with (
                self.keeper.broker.client() as client,
                client.subscribe(LASTING, ack="auto", name=KEPT, durable=True) as subscriber,
            ):
                for delivery in await subscriber.receive_many(1_000, timeout=seconds):
                    self._stage.judge(self.keeper.name, delivery)
                    self._got[bytes(delivery.body).decode()] += 1

    async def check(self) -> None:
        """Check that each confirmed message comes, once."""
        with trio.move_on_after(PATIENCE_S):
            while not self._confirmed <= self._got.keys():
                await self._receive(0.5)
        missing = sorted(self._confirmed - self._got.keys())
        if missing:
            text = f"{len(missing)} of {len(self._confirmed)} messages for the subscription at {self.keeper.name}"
            self._stage.wrong("W7", f"{text} did not come: {missing[:5]}")
        self._stage.seen("owed", len(self._confirmed))
        twice = [uid for uid, times in self._got.items() if times > 1]
        if twice and self._stage.shape.conduit and not self._stage.shape.kills:
            self._stage.wrong("W6", f"the subscription at {self.keeper.name} has {twice[:5]} more than once")
