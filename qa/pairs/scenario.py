"""The workload of one seed: the features of a row meet on the queue ``orders``, and every message is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from meshq.client import Client, Consumer, Delivery, connect
from meshq.errors import NotFoundError
from meshq.limits import KIB
from meshq.node import Broker
from meshq.settings import JournalSettings
from meshq.testing import Cluster
from qa.pairs.accounts import DIVERTED, MESSAGES, MeetingError
from qa.pairs.consumers import Consumers, subscription
from qa.pairs.covering import Row
from qa.pairs.features import COPIES, ENDS, FAR, FAR_ENDS, NEWS, NOTES, SUBSCRIPTIONS, far_settings
from qa.pairs.operators import TAPE, Operators
from qa.pairs.producers import PRODUCERS, Producers
from qa.pairs.scene import MeetingScene

#: Seconds after which all that was sent, and not expired, has to be there.
QUIET_S: Final = 20.0
CONSUMERS: Final = 2


class Meeting:
    """The run of one seed, with the features of its row and the accounts of its clients."""

    def __init__(self, cluster: Cluster, row: Row) -> None:
        self._cluster = cluster
        self._scene = MeetingScene(cluster, row)

    async def run(self) -> Counter[str]:
        """Let all tasks work, end all faults, take all messages that are left, and compare.

        Returns how often each feature has acted."""
        scene = self._scene
        async with trio.open_nursery() as far:
            if scene.on("bridges"):
                far.start_soon(self._live_far)
            await self._prepare()
            await self._work()
            await self._cluster.healed()
            await self._drain()
            far.cancel_scope.cancel()
        scene.accounts.judge()
        for name, feature in ((DIVERTED, "divert"), *((name, "subscriptions") for name in SUBSCRIPTIONS)):
            scene.accounts.acted[feature] += scene.accounts.books[name].taken.total()
        return scene.accounts.acted

    async def _prepare(self) -> None:
        """Make diverts and subscriptions, before anything is sent."""
        scene = self._scene
        # A client whose node has died goes to another one.
        for node in self._cluster.nodes:
            async with scene.remote(node) as client:
                if scene.on("divert"):
                    await client.create_divert("copy", address="orders", forwarding_address=DIVERTED)
                if scene.on("subscriptions"):
                    await client.create_address("news", routing="multicast")
                    await client.create_divert("publish", address="orders", forwarding_address="news")
                    # Diverted messages go to no other node.
                    for name in SUBSCRIPTIONS:
                        async with subscription(client, name):
                            pass

    async def _work(self) -> None:
        scene = self._scene
        consumers, producers, operators = Consumers(scene), Producers(scene), Operators(scene)
        async with trio.open_nursery() as nursery:
            for node, work in operators.works():
                nursery.start_soon(operators.repeat, node, work)
            for number in range(CONSUMERS):
                nursery.start_soon(consumers.consume, number)
            if scene.on("subscriptions"):
                # Two share the second one.
                for name in (*SUBSCRIPTIONS, SUBSCRIPTIONS[-1]):
                    nursery.start_soon(consumers.subscribe, name)
            async with trio.open_nursery() as senders:
                for number in range(PRODUCERS):
                    senders.start_soon(producers.produce, number)
                if scene.on("kill") or scene.on("power loss"):
                    senders.start_soon(self._faults)
            await trio.sleep(QUIET_S)
            scene.over.set()

    async def _faults(self) -> None:
        for feature, fault in (("kill", self._cluster.kill), ("power loss", self._cluster.power_loss)):
            if self._scene.on(feature):
                await self._scene.rest(3.0)
                fault("n0")
                self._scene.accounts.acted[feature] += 1
                await self._scene.rest(2.0)
                await self._cluster.restart("n0")

    async def _live_far(self) -> None:
        """Let the other broker live, stop, and live again; from the end of the meeting on it stays."""
        scene = self._scene
        while True:
            async with Broker(
                "far",
                data_dir="/far",
                journal=JournalSettings(segment_bytes=256 * KIB),
                acceptors=[f"{FAR}?insecure=true"],
                queues=FAR_ENDS,
                address_settings=far_settings(),
            ):
                with trio.move_on_after(scene.chance.uniform(2.0, 6.0)):
                    await scene.over.wait()
                    await trio.sleep_forever()
                if scene.over.is_set():
                    await trio.sleep_forever()
            await scene.rest(1.0)

    # -- the end

    async def _drain(self) -> None:
        """Take all messages that are left at every node, and at the other broker."""
        scene = self._scene
        for node in self._cluster.nodes:
            async with scene.remote(node) as client:
                await self._let_go(client)
        await trio.sleep(QUIET_S)
        if scene.on("bridges"):
            async with scene.remote(scene.last) as client:
                await client.pause_bridge("away")
        for node in self._cluster.nodes:
            async with scene.remote(node) as client:
                await self._look(client)
                places = [(queue, MESSAGES) for queue in (*ENDS, NOTES)] + [(queue, DIVERTED) for queue in COPIES]
                for queue, name in places:
                    await self._take_all(client, queue, name)
                if scene.on("subscriptions"):
                    await self._take_news(client)
                await trio.sleep(1.0)
                if scene.on("auto-delete"):
                    if "orders" in await client.queues():
                        raise MeetingError("P12: the queue is empty, nobody is there any more, and it is not deleted")
                    scene.accounts.acted["auto-delete"] += 1
        if scene.on("bridges"):
            async with connect(FAR, insecure=True) as client:
                for queue in FAR_ENDS:
                    await self._take_all(client, queue, MESSAGES)

    async def _let_go(self, client: Client) -> None:
        """Resume the queue, and delete its cursor."""
        for call in (client.resume_queue("orders"), client.delete_cursor("orders", TAPE)):
            with suppress(NotFoundError):
                await call

    async def _look(self, client: Client) -> None:
        """Browse the queue of a node that has no consumers any more."""
        if self._scene.on("last value"):
            async with client.consumer("orders", browse=True) as browser:
                self._scene.accounts.check_newest([message.body async for message in browser])

    async def _take_news(self, client: Client) -> None:
        for name in SUBSCRIPTIONS:
            async with subscription(client, name) as consumer:
                await self._settle(consumer, partial(_named, name))
        for queue in NEWS:
            async with client.consumer(queue) as consumer:
                await self._settle(consumer, _subscription_of)

    async def _take_all(self, client: Client, queue: str, name: str) -> None:
        async with client.consumer(queue) as consumer:
            await self._settle(consumer, partial(_named, name))

    async def _settle(self, consumer: Consumer, name_of: Callable[[Delivery], str]) -> None:
        while (delivery := await consumer.receive(timeout=5)) is not None:
            await delivery.ack(confirm=True)
            self._scene.accounts.books[name_of(delivery)].taken[delivery.body] += 1
            self._scene.accounts.acted["bridges"] += consumer.queue in FAR_ENDS


def _named(name: str, _: Delivery) -> str:
    return name


def _subscription_of(delivery: Delivery) -> str:
    """Return the subscription from which a message was moved."""
    assert delivery.origin is not None
    return delivery.origin.queue.rpartition("::")[2]


async def meeting(cluster: Cluster, row: Row) -> Counter[str]:
    """Let the features of a row meet; return how often each has acted.

    Checkpoint: always.  Cancellation: ends the meeting.
    Raises:
        MeetingError: a promise is broken.
    """
    return await Meeting(cluster, row).run()
