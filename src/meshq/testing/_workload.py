"""What the simulated clients do: send in every way, receive, settle, die and come back, and write it all down.

Every message has a number of its own and is recorded before it is sent.  A producer that loses its client goes on
in the next life with the same messages under the same duplicate ids, as a careful user would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from meshq.client import Client, Delivery, connect
from meshq.errors import MeshqError, Outcome
from meshq.message import Message
from meshq.testing._history import History, body_of
from meshq.testing._node import SimNode

URL: Final = "tcp://broker:5000"
QUEUES: Final = ("shared", "solo")
#: Seconds after which calls, links and sessions are given up: short, so that a minute sees many of them.
SETTINGS: Final[dict[str, Any]] = {
    "insecure": True,
    "initial_connect_attempts": float("inf"),
    "connection_ttl": 4.0,
    "check_period": 1.0,
    "call_timeout": 20.0,
    "call_failover_timeout": 20.0,
    "retry_interval": 0.05,
    "max_retry_interval": 0.5,
}


class Uids:
    """Hands out message numbers."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        """A number that was never given."""
        self._last += 1
        return self._last


class Actor:
    """One simulated client process, over all its lives."""

    def __init__(self, node: SimNode, history: History, uids: Uids, rng: random.Random) -> None:
        self.node = node
        self.history = history
        self.uids = uids
        self.rng = rng
        #: Set by the scenario: nothing new is sent any more.
        self.closing = False
        #: Confirmed sends so far, over all lives.
        self.confirmed = 0

    def connect(self) -> Client:
        """A client in the node's present life."""
        return connect(URL, env=self.node.env, client_id=self.node.name, **SETTINGS)

    async def run(self) -> None:
        """One life: sends and receives until the node dies or the scenario ends.

        Checkpoint: always.  Cancellation: ends it.
        """
        raise NotImplementedError


class Sender(Actor):
    """Sends, in every way that there is; what fails with an unknown outcome and has a duplicate id is sent again."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # Batches whose fate is unknown: (queue, uids), under duplicate ids, oldest first.
        self._again: list[tuple[str, list[int]]] = []
        self._life = 0

    async def run(self) -> None:
        """Send batches until the scenario closes; then what is left to repeat."""
        self._life += 1
        ways: Sequence[Callable[[Client, str, list[int], bool], Any]] = (self._one_by_one, self._many, self._pipelined)
        async with self.connect() as client:
            while self._again or not self.closing:
                if self._again:
                    queue, uids = self._again[0]
                    await self._many(client, queue, uids, True)
                    self._again.pop(0)
                    continue
                queue = self.rng.choice(QUEUES)
                uids = [self.uids.next() for _ in range(self.rng.choice((1, 1, 3, 20)))]
                with_id = self.rng.random() < 0.5
                if with_id:
                    self._again.append((queue, uids))
                await self.rng.choice(ways)(client, queue, uids, with_id)
                if with_id and self.rng.random() < 0.9:
                    # Now and then it is sent again for no reason: a duplicate on purpose.
                    self._again.pop(0)
                await trio.sleep(self.rng.expovariate(2.0))

    def _sent(self, queue: str, uid: int, with_id: bool) -> int:
        name = f"{self.node.name}/{self._life}/{queue}"
        duplicate_id = f"d{uid}" if with_id else None
        return self.history.sent(self.node.name, queue, uid, producer=name, duplicate_id=duplicate_id)

    def _body(self, uid: int) -> bytes:
        return body_of(uid, 16 << (uid % 8))

    def _done(self, ops: Sequence[int]) -> None:
        for op in ops:
            self.history.send_ok(op)
        self.confirmed += len(ops)

    def _failed(self, ops: Sequence[int], error: MeshqError) -> None:
        results: Sequence[MeshqError | None] = error.results
        for index, op in enumerate(ops):
            result = results[index] if len(results) == len(ops) else error
            if result is None:
                self._done([op])
            else:
                self.history.send_failed(op, result.outcome)

    async def _one_by_one(self, client: Client, queue: str, uids: list[int], with_id: bool) -> None:
        for uid in uids:
            op = self._sent(queue, uid, with_id)
            try:
                await client.send(queue, self._body(uid), duplicate_id=f"d{uid}" if with_id else None)
            except MeshqError as error:
                self._failed([op], error)
            else:
                self._done([op])

    async def _many(self, client: Client, queue: str, uids: list[int], with_id: bool) -> None:
        ops = [self._sent(queue, uid, with_id) for uid in uids]
        messages = [
            Message(self._body(uid), duplicate_id=f"d{uid}" if with_id else None, properties={"uid": uid})
            for uid in uids
        ]
        try:
            await client.send_many(queue, messages)
        except MeshqError as error:
            self._failed(ops, error)
        else:
            self._done(ops)

    async def _pipelined(self, client: Client, queue: str, uids: list[int], with_id: bool) -> None:
        ops: list[int] = []
        try:
            async with client.producer(queue, window=self.rng.choice((1, 7, 4000))) as producer:
                for uid in uids:
                    ops.append(self._sent(queue, uid, with_id))
                    await producer.send(self._body(uid), duplicate_id=f"d{uid}" if with_id else None)
        except MeshqError as error:
            self._failed(ops, error)
        else:
            self._done(ops)


class Receiver(Actor):
    """Receives and settles, slowly or fast, now and then not at all."""

    def __init__(self, node: SimNode, history: History, uids: Uids, rng: random.Random, queues: Sequence[str]) -> None:
        super().__init__(node, history, uids, rng)
        self._queues = queues
        self._life = 0

    async def run(self) -> None:
        """Consume until the scenario ends this life."""
        self._life += 1
        async with self.connect() as client, trio.open_nursery() as nursery:
            for queue in self._queues:
                nursery.start_soon(self._consume, client, queue)

    async def _consume(self, client: Client, queue: str) -> None:
        while True:
            name = f"{self.node.name}/{self._life}/{queue}"
            try:
                await self._one_consumer(client, queue, name)
            except MeshqError as error:
                self.history.note(f"{name}: {error!r}")
                await trio.sleep(0.1)

    async def _one_consumer(self, client: Client, queue: str, name: str) -> None:
        window = self.rng.choice((1, 10, 1000))
        async with client.consumer(queue, window=window, window_bytes=self.rng.choice((1_000, 1 << 24))) as consumer:
            for _ in range(self.rng.randrange(3, 60)):
                batch = await consumer.receive_many(self.rng.choice((1, 5, 200)), timeout=self.rng.choice((0.0, 1.0)))
                if not batch:
                    await trio.sleep(0.2)
                    continue
                numbers = [self._delivered(name, queue, delivery) for delivery in batch]
                if not self.closing:
                    await trio.sleep(self.rng.expovariate(8.0))
                await self._settle(consumer, batch, numbers)

    def _delivered(self, name: str, queue: str, delivery: Delivery) -> int:
        return self.history.delivered(
            self.node.name,
            name,
            queue,
            delivery.body,
            sequence=delivery.sequence,
            redelivered=delivery.redelivered,
            delivery_count=delivery.delivery_count,
        )

    async def _settle(self, consumer: Any, batch: list[Delivery], numbers: list[int]) -> None:
        kind = "ack"
        if not self.closing:
            kind = self.rng.choices(("ack", "nack", "reject", "leave"), (20, 2, 1, 1))[0]
        if kind == "leave":
            return
        op = self.history.settling(numbers, kind)
        confirm = kind == "ack" and self.rng.random() < 0.5
        outcome: Outcome
        try:
            if kind == "ack":
                await consumer.ack(*batch, confirm=confirm)
            elif kind == "nack":
                await consumer.nack(*batch)
            else:
                await consumer.reject(*batch)
        except MeshqError as error:
            outcome = error.outcome
            self.history.settle_failed(op, outcome)
            return
        if confirm:
            self.history.settle_ok(op)
