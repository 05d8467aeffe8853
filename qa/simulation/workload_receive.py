"""The simulated clients that receive, and the one that makes and deletes queues."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from meshq.client import Client, Consumer, Delivery, FailedOver
from meshq.errors import MeshqError, NotFoundError, Outcome
from meshq.testing.history._history import body_of, place_of
from qa.simulation.workload import SETTINGS, Actor, Dial, Scene

#: Seconds within which a broker has ended the session of a dead client, its own pauses included.
HAUNTING_S: Final = 4 * SETTINGS["connection_ttl"]


class Queues:
    """The queues of a receiver, by their names at the broker and in the history."""

    def __init__(self, names: Sequence[str], node: str = "", *, only: str | None = None) -> None:
        self.names = names
        #: The node of a mesh on which the queues are; empty: there is one broker.
        self.node = node
        #: The filter of the receiver; None: all messages.
        self.filter = only

    def place(self, queue: str) -> tuple[str, str]:
        """The queue and the place by which the history knows a queue."""
        return queue, self.node

    def opened(self, queue: str) -> str:
        """The name of a queue at its broker."""
        return queue

    def handed(self, delivery: Delivery, number: int) -> None:
        """A message was handed over, and has this number in the history."""


class Settling:
    """The calls by which a receiver settles, and how often it makes each of them."""

    def __init__(self, kinds: tuple[int, int, int, int] = (20, 3, 1, 1)) -> None:
        #: How often messages are acknowledged, given back, rejected, and kept until the receiver leaves.
        self.kinds = kinds

    def died(self) -> None:
        """The process of the receiver has died."""

    async def give_back(self, consumer: Consumer, batch: list[Delivery]) -> None:
        """Give messages back.  Checkpoint: maybe.  Cancellation: they are not touched."""
        await consumer.nack(*batch)

    async def acknowledge(self, client: Client, consumer: Consumer, batch: list[Delivery], *, confirm: bool) -> bool:
        """Acknowledge; returns whether that is stored.  Checkpoint: maybe.  Cancellation: unknown."""
        await consumer.ack(*batch, confirm=confirm)
        return confirm


#: One by one, mostly acknowledged.
PLAIN: Final = Settling()


class Receiver(Actor):
    """Receives from each of its queues and settles, slowly or fast, now and then not at all.

    ``leaves``: takes nothing once the scene is closing.
    """

    ends = False

    def __init__(
        self,
        scene: Scene,
        name: str,
        rng: random.Random,
        dial: Dial,
        queues: Queues,
        *,
        settling: Settling = PLAIN,
        leaves: bool = False,
    ) -> None:
        super().__init__(scene, name, rng, dial)
        self._queues = queues
        self._settling = settling
        self._leaves = leaves
        self._opened = 0
        self._session_began = 0.0

    @property
    def finished(self) -> bool:
        """Drain the queue until the node is killed, or leave the messages to others in the end."""
        return self._leaves and self.scene.closing

    def died(self) -> None:
        """Its process has died, and begins anew; the broker may not know that yet."""
        for queue in self._queues.names:
            self.history.haunts(place_of(*self._queues.place(queue)), HAUNTING_S)
        self._settling.died()

    async def use(self, client: Client) -> None:
        """Consume for a while, or until the scene is closing.

        Checkpoint: always.  Cancellation: ends it.  Raises: nothing.
        """
        if not self._leaves:
            await self._consume_all(client)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_closing, nursery.cancel_scope)
            await self._consume_all(client)
            nursery.cancel_scope.cancel()

    async def _until_closing(self, scope: trio.CancelScope) -> None:
        while not self.scene.closing:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.5)
        scope.cancel()

    async def _consume_all(self, client: Client) -> None:
        self._session_began = trio.current_time()
        until = self._session_began + 3.0 + self.rng.expovariate(0.1)
        async with trio.open_nursery() as watch:
            watch.start_soon(self._watch, client)
            async with trio.open_nursery() as nursery:
                for queue in self._queues.names:
                    nursery.start_soon(self._consume, client, queue, until)
            watch.cancel_scope.cancel()

    async def _watch(self, client: Client) -> None:
        async for event in client.events():
            if isinstance(event, FailedOver):
                self._session_began = event.at

    async def _consume(self, client: Client, queue: str, until: float) -> None:
        while trio.current_time() < until:
            try:
                await self._one_consumer(client, queue, until)
            except MeshqError as error:
                self.history.note(f"{self.name}: {error!r}")
                if client.statistics().state in ("closed", "failed"):
                    return
                await trio.sleep(0.1)

    async def _one_consumer(self, client: Client, queue: str, until: float) -> None:
        self._opened += 1
        name = f"{self.name}/{queue}/{self._opened}"
        window = self.rng.choice((1, 3, 10, 1000))
        room = self.rng.choice((1_000, 1 << 24))
        opened, only = self._queues.opened(queue), self._queues.filter
        async with client.consumer(opened, filter=only, window=window, window_bytes=room) as consumer:
            holding = False
            for _ in range(self.rng.randrange(3, 60)):
                if trio.current_time() >= until or (holding and self.scene.closing):
                    break
                if self.scene.stuck:
                    await trio.sleep(0.5)
                    continue
                patience = 2.0 if self.scene.closing else self.rng.choice((0.0, 2.0))
                batch = await consumer.receive_many(self.rng.choice((1, 5, 200)), timeout=patience)
                if not batch:
                    await trio.sleep(self.idle_s)
                    continue
                epoch = client.statistics().epoch
                numbers = [self._delivered(f"{name}#{epoch}", queue, delivery, window) for delivery in batch]
                if not self.scene.closing:
                    await trio.sleep(self.rng.expovariate(5.0))
                holding |= not await self._settle(client, consumer, batch, numbers)
            # One that is just being made again leaves only when it has been: the next one would not be alone.
            while consumer._inbox.life.state != "open":  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.05)

    def _delivered(self, stream: str, queue: str, delivery: Delivery, window: int) -> int:
        known, node = self._queues.place(queue)
        number = self.history.delivered(
            self.name,
            stream.partition("#")[0],
            known,
            delivery.body,
            sequence=delivery.sequence,
            redelivered=delivery.redelivered,
            delivery_count=delivery.delivery_count,
            stream=stream,
            window=window,
            since_s=self._session_began,
            node=node,
            line=(delivery.priority, delivery.group),
        )
        self._queues.handed(delivery, number)
        return number

    async def _settle(self, client: Client, consumer: Consumer, batch: list[Delivery], numbers: list[int]) -> bool:
        """Settle them, or keep them until the consumer closes; whether they are off its hands."""
        kind = "ack"
        if not self.scene.closing:
            kind = self.rng.choices(("ack", "nack", "reject", "leave"), self._settling.kinds)[0]
        if kind == "leave":
            return False
        op = self.history.settling(numbers, kind)
        confirm = kind == "ack" and self.rng.random() < 0.5
        try:
            if kind == "ack":
                confirm = await self._settling.acknowledge(client, consumer, batch, confirm=confirm)
            elif kind == "nack":
                await self._settling.give_back(consumer, batch)
            else:
                await consumer.reject(*batch)
        except MeshqError as error:
            # Those that it does not speak of were settled.
            partly = any(result is None for result in error.results)
            outcome: Outcome = "unknown" if partly else error.outcome
            self.history.settle_failed(op, outcome)
            return True
        if confirm:
            self.history.settle_ok(op)
        return True


class QueueCare(Protocol):
    """The treatment of each queue by a clerk."""

    #: Every queue whose making was confirmed: True while it must exist, False once it must not; queues of which that
    #: is unknown are not in it.
    standing: dict[str, bool]

    def died(self) -> None:
        """The process of the clerk has died."""

    async def one_queue(self, client: Client, name: str) -> None:
        """Make a queue and use it.  Checkpoint: always.  Cancellation: ends it.  Raises: MeshqError."""


class Clerk(Actor):
    """Makes queues, one after the other, and treats each in the same way."""

    def __init__(self, scene: Scene, name: str, rng: random.Random, dial: Dial, care: QueueCare) -> None:
        super().__init__(scene, name, rng, dial)
        self.care = care
        self._made = 0

    def died(self) -> None:
        """Its process has died, and begins anew."""
        self.care.died()

    async def use(self, client: Client) -> None:
        """A few queues, one after the other.  Checkpoint: always.  Cancellation: ends it."""
        for _ in range(3):
            if self.finished:
                return
            self._made += 1
            name = f"{self.name}.{self._made}"
            try:
                await self.care.one_queue(client, name)
            except MeshqError as error:
                self.history.note(f"{self.name}: {error!r}")
            await trio.sleep(self.rng.expovariate(0.3))


class UsedQueues:
    """Queues that are each used a little, and of which some are purged and deleted."""

    def __init__(self, scene: Scene, name: str, rng: random.Random) -> None:
        self.standing: dict[str, bool] = {}
        self._scene = scene
        self._history = scene.history
        self._name = name
        self._rng = rng

    def died(self) -> None:
        """Nothing is left to do for a process that has died."""

    async def one_queue(self, client: Client, name: str) -> None:
        """Make a queue and use it.  Checkpoint: always.  Cancellation: ends it.  Raises: MeshqError."""
        await client.create_queue(name)
        self.standing[name] = True
        sent = [await self._send(client, name) for _ in range(self._rng.randrange(4))]
        if self._rng.random() < 0.3:
            for uid, _ in sent:
                self._history.gone(name, uid, "purged")
            await client.purge_queue(name)
        # A send in doubt may be repeated by the client later, and would make the queue again.
        if all(done for _, done in sent) and self._rng.random() < 0.7:
            del self.standing[name]
            for uid, _ in sent:
                self._history.gone(name, uid, "deleted with its queue")
            await client.delete_queue(name)
            try:
                await client.queue(name)
            except NotFoundError:
                self.standing[name] = False
            else:
                self._history.final.left("deleted queues that exist", 1)

    async def _send(self, client: Client, queue: str) -> tuple[int, bool]:
        uid = self._scene.uid()
        op = self._history.sent(self._name, queue, uid)
        try:
            await client.send(queue, body_of(uid))
        except MeshqError as error:
            self._history.send_failed(op, error.outcome)
            return uid, False
        self._history.send_ok(op)
        return uid, True
