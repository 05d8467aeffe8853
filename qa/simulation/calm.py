"""A stage without faults: the promises of a broker that lives about non-durable, delayed, expiring, urgent and grouped
messages, and about windows and memory.

It is played in the broker's first life, before the first fault, from within its process: nothing is between what the
broker does and what is seen of it, so that the checkers (``qa.checkers.calm``) can judge to the moment.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

import trio

from meshq.client import Client, Consumer, Delivery
from meshq.message import Message
from meshq.testing.history._history import body_of
from qa.simulation.broker import MEMORY_BYTES, BrokerNode
from qa.simulation.workload import Scene

ANY, LATE, DUE, URGENT, GROUPED, NARROW, FULL = CALM = tuple(
    f"calm.{name}" for name in ("any", "late", "due", "urgent", "grouped", "narrow", "full")
)
#: Seconds without a message after which a queue has nothing more.
QUIET_S: Final = 1.0
TTLS: Final = (math.inf, 0.3, 0.6, 1.0, 1.5, 2.2)
DELAYS: Final = (0.0, 0.1, 0.5, 1.2)
#: How often a queue is looked at while its messages expire; fewer than the attempts that a message has.
LOOKS: Final = 6
#: Messages that are more than the memory of the broker, small enough to be held there; and what may be used besides
#: the limit: what one session has under way.
FULL_BYTES: Final = 6_000
FULL_MESSAGES: Final = 400
FULL_SLACK_BYTES: Final = 128 * 1024


class Calm:
    """All parts of the stage, at the same time but for the one that fills the memory."""

    def __init__(self, scene: Scene, broker: BrokerNode, rng: random.Random) -> None:
        self.scene = scene
        self.history = scene.history
        self.broker = broker
        self.rng = rng
        self._opened = 0

    async def run(self) -> None:
        """Play it.  Checkpoint: always.  Cancellation: the simulation ends.  Raises: nothing: no call may fail here."""
        history = self.history
        for queue in CALM:
            history.expected.plays_calm(queue)
            history.expected.drains(queue)
        async with self.broker.client() as client:
            for queue in CALM:
                await client.create_queue(queue)
            async with trio.open_nursery() as nursery:
                for part in (self._any, self._late, self._due, self._urgent, self._grouped, self._narrow):
                    nursery.start_soon(part, client)
            await self._full(client)
            for queue in CALM:
                await client.delete_queue(queue)

    # -- what is written down

    async def _send(self, client: Client, queue: str, asks: Sequence[dict[str, Any]], *, size: int = 0) -> None:
        """Send messages that ask for something, as one batch."""
        history, messages, ops = self.history, [], []
        for ask in asks:
            uid = self.scene.uid()
            durable = ask.pop("durable", self.rng.random() < 0.5)
            given = {name: value for name, value in ask.items() if value not in (math.inf, 0.0)}
            messages.append(Message(body_of(uid, size), durable=durable, **given))
            ttl, delay = ask.get("ttl", math.inf), ask.get("delay", 0.0)
            ops.append(history.sent("calm", queue, uid, durable=durable, ttl_s=ttl, delay_s=delay))
            if ttl < math.inf:
                history.gone(queue, uid, "expires")
        await client.send_many(queue, messages)
        for op in ops:
            history.send_ok(op)

    def _name(self, queue: str) -> str:
        self._opened += 1
        return f"{queue}/{self._opened}"

    def _handed(self, name: str, queue: str, batch: Sequence[Delivery], window: int, since_s: float) -> list[int]:
        return [
            self.history.delivered(
                "calm",
                name,
                queue,
                delivery.body,
                sequence=delivery.sequence,
                redelivered=delivery.redelivered,
                delivery_count=delivery.delivery_count,
                stream=name,
                window=window,
                since_s=since_s,
                line=(delivery.priority, delivery.group),
            )
            for delivery in batch
        ]

    async def _acknowledge(self, consumer: Consumer, batch: Sequence[Delivery], numbers: Sequence[int]) -> None:
        op = self.history.settling(numbers)
        await consumer.ack(*batch, confirm=True)
        self.history.settle_ok(op)

    async def _give_back(self, consumer: Consumer, batch: Sequence[Delivery], numbers: Sequence[int]) -> None:
        delay = self.rng.choice((0.0, 0.4))
        self.history.settling(numbers, "nack", delay_s=delay)
        await consumer.nack(*batch, delay=delay)

    async def _drain(self, client: Client, queue: str, window: int, returned: float = 0.0) -> None:
        """Take all that comes until nothing has come for a while; give back some of it, once."""
        name, began = self._name(queue), trio.current_time()
        async with client.consumer(queue, window=window) as consumer:
            while batch := await consumer.receive_many(self.rng.choice((1, 5, 200)), timeout=QUIET_S):
                numbers = self._handed(name, queue, batch, window, began)
                if self.rng.random() < returned and not batch[0].redelivered:
                    await self._give_back(consumer, batch, numbers)
                else:
                    await self._acknowledge(consumer, batch, numbers)

    # -- the parts

    async def _any(self, client: Client) -> None:
        """Send durable and non-durable messages, in runs of all sizes, to a consumer."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain, client, ANY, self.rng.choice((3, 1000)), 0.2)
            for _ in range(12):
                await self._send(client, ANY, [{} for _ in range(self.rng.choice((1, 2, 5, 40)))])
                await trio.sleep(self.rng.random() * 0.1)

    async def _late(self, client: Client) -> None:
        """Send runs whose messages expire at different times, before and after their delivery."""
        for _ in range(3):
            ttls = self.rng.sample(TTLS, len(TTLS))
            await self._send(client, LATE, [{"ttl": ttl} for ttl in ttls])
        released_s = -math.inf
        for look in range(LOOKS):
            await trio.sleep(self.rng.random() * 0.6)
            asked_s = trio.current_time()
            statistics = await client.queue(LATE)
            there = statistics.ready + statistics.delivering + statistics.delayed
            self.history.looked(LATE, there, asked_s, released_s)
            name, began = self._name(LATE), trio.current_time()
            async with client.consumer(LATE) as consumer:
                batch = await consumer.receive_many(1_000, timeout=0.05)
                numbers = self._handed(name, LATE, batch, 1_000, began)
                if look == LOOKS - 1:
                    await self._acknowledge(consumer, batch, numbers)
                elif batch:
                    await trio.sleep(self.rng.random() * 0.3)
                    self.history.settling(numbers, "nack")
                    await consumer.nack(*batch, delay=0.0)
                    await client.flush()
            released_s = trio.current_time()
        await self._drain(client, LATE, 1_000)

    async def _due(self, client: Client) -> None:
        """Messages of one run that wait for different times, and wait again when they are given back."""
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                await self._send(client, DUE, [{"delay": self.rng.choice(DELAYS)} for _ in range(6)])
            nursery.start_soon(self._drain, client, DUE, self.rng.choice((2, 1000)), 0.3)
            await trio.sleep(self.rng.random())
            await self._send(client, DUE, [{"delay": delay} for delay in DELAYS])

    async def _urgent(self, client: Client) -> None:
        """Send urgent messages behind others, all of them before a consumer comes."""
        for _ in range(4):
            await self._send(client, URGENT, [{"priority": self.rng.randrange(10)} for _ in range(10)])
        await trio.sleep(0.01)
        await self._drain(client, URGENT, self.rng.choice((1, 7, 1000)))

    async def _grouped(self, client: Client) -> None:
        """Groups of which each has one holder while two consumers stay."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._drain, client, GROUPED, self.rng.choice((1, 4, 10)))
            await trio.sleep(0.01)
            for _ in range(8):
                groups = [self.rng.choice(("g0", "g1", "g2", "g3")) for _ in range(6)]
                await self._send(client, GROUPED, [{"group": group} for group in groups])
                await trio.sleep(self.rng.random() * 0.1)

    async def _narrow(self, client: Client) -> None:
        """Run consumers that settle their messages when no more come."""
        await self._send(client, NARROW, [{} for _ in range(20)])
        for window in (1, 3, 10):
            name, began = self._name(NARROW), trio.current_time()
            async with client.consumer(NARROW, window=window) as consumer:
                taken: list[Delivery] = []
                numbers: list[int] = []
                while batch := await consumer.receive_many(100, timeout=0.1):
                    numbers += self._handed(name, NARROW, batch, window, began)
                    taken += batch
                held = (await client.queue(NARROW)).delivering
                self.history.bounded(f"messages dispatched by {NARROW}", held, window)
                await self._acknowledge(consumer, taken, numbers)
        await self._drain(client, NARROW, 1_000)

    async def _full(self, client: Client) -> None:
        """Send more than the memory holds: messages go to the disk, or the sender waits for a consumer."""
        async with trio.open_nursery() as nursery:
            watch = trio.CancelScope()
            nursery.start_soon(self._watch, watch)
            async with trio.open_nursery() as busy:
                busy.start_soon(self._fill)
                await trio.sleep(0.5)
                await self._drain(client, FULL, 20)
            watch.cancel()

    async def _fill(self) -> None:
        async with self.broker.client() as client:
            for _ in range(FULL_MESSAGES // 10):
                await self._send(client, FULL, [{} for _ in range(10)], size=FULL_BYTES)

    async def _watch(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                core = self.broker.serving_core
                self.history.bounded("memory", core.memory.used_bytes, MEMORY_BYTES + FULL_SLACK_BYTES)
                await trio.sleep(0.01)
