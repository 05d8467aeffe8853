"""The workload of one seed: the features of a row meet on the queue ``orders``, and every message is accounted for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import trio

from meshq.client import Client, Consumer, Delivery
from meshq.errors import MeshqError, NotFoundError
from meshq.testing import Cluster
from qa.pairs.covering import Row

#: Queues in which a message may end, and those in which its copy may.
ENDS: Final = ("orders", "moved", "dead", "expired")
COPIES: Final = ("copies", "late copies")
QUEUES: Final = (*ENDS, *COPIES, "questions")
PRODUCERS: Final = 2
#: Messages of each producer.
EACH: Final = 12
#: Seconds after which all that was sent, and not expired, has to be there.
QUIET_S: Final = 20.0
SPAN_S: Final = 3.0
PATIENT: Final[dict[str, Any]] = {
    "initial_connect_attempts": math.inf,
    "reconnect_attempts": math.inf,
    "call_timeout": 20.0,
    "call_failover_timeout": 20.0,
}


class MeetingError(AssertionError):
    """Features that met have broken a promise; the message names the one that says so."""


@attrs.define
class Fate:
    """The facts about one message."""

    durable: bool = True
    #: Whether it is certain that it was stored, and that it was not.
    confirmed: bool = False
    refused: bool = False


class Meeting:
    """The run of one seed, with the features of its row and the accounts of its clients."""

    def __init__(self, cluster: Cluster, row: Row) -> None:
        self._cluster = cluster
        self._row = row
        self._chance = cluster.rng
        self._fates: dict[bytes, Fate] = {}
        #: Confirmed acknowledgements, of messages and of their copies.
        self.taken: Counter[bytes] = Counter()
        self.copies: Counter[bytes] = Counter()
        self._over = trio.Event()
        self._sent = 0

    def on(self, feature: str) -> bool:
        """Whether a feature is on."""
        return feature in self._row

    def _often(self, feature: str, share: float = 0.4) -> bool:
        return self.on(feature) and self._chance.random() < share

    def _client(self, node: str) -> Client:
        if self.on("in process"):
            return self._cluster.broker(node).client()
        return self._cluster.client(node, **PATIENT)

    # -- the run

    async def run(self) -> None:
        """Let all tasks work, end all faults, take all messages that are left, and compare."""
        last = self._cluster.nodes[-1] if self.on("redistribution") else "n0"
        if self.on("divert"):
            # A client whose node has died goes to another one.
            for node in self._cluster.nodes:
                async with self._cluster.client(node) as client:
                    await client.create_divert("copy", address="orders", forwarding_address="copies")
        async with trio.open_nursery() as nursery:
            for feature, work in self._side_work().items():
                if self.on(feature):
                    nursery.start_soon(self._until_over, work)
            for number in range(2):
                nursery.start_soon(self._consume, last, number)
            async with trio.open_nursery() as producers:
                for number in range(PRODUCERS):
                    producers.start_soon(self._produce, number)
                if self.on("kill") or self.on("power loss"):
                    producers.start_soon(self._faults)
            await trio.sleep(QUIET_S)
            self._over.set()
        await self._cluster.healed()
        await self._drain()
        self._judge()

    async def _until_over(self, work: Callable[[Client], Awaitable[None]]) -> None:
        async with self._client("n0") as client:
            while not self._over.is_set():
                await trio.sleep(self._chance.uniform(0.1, 2.0))
                try:
                    await work(client)
                except NotFoundError:
                    raise
                except MeshqError:
                    # A node has died in the middle.
                    continue

    async def _faults(self) -> None:
        for feature, fault in (("kill", self._cluster.kill), ("power loss", self._cluster.power_loss)):
            if self.on(feature):
                await trio.sleep(self._chance.uniform(0.0, 3.0))
                fault("n0")
                await trio.sleep(self._chance.uniform(0.0, 2.0))
                await self._cluster.restart("n0")

    # -- producers

    async def _produce(self, producer: int) -> None:
        async with self._client("n0") as client:
            for number in range(EACH):
                bodies = [b"%d of %d" % (number, producer)]
                if self.on("transactions") or self.on("two-phase"):
                    bodies.append(b"%d of %d, too" % (number, producer))
                if self._often("large bodies", 0.2):
                    bodies[0] += b" " * 100_000
                await self._send(client, bodies)
                await trio.sleep(self._chance.uniform(0.0, 0.5))

    def _about(self, body: bytes) -> dict[str, Any]:
        """Draw the options with which a message is sent."""
        self._sent += 1
        about: dict[str, Any] = {"properties": {"side": self._sent % 2}, "duplicate_id": f"id {body[:40]!r}"}
        if self.on("priority"):
            about["priority"] = self._chance.randrange(10)
        if self.on("groups"):
            about["group"] = f"group {self._chance.randrange(3)}"
        if self._often("delay"):
            about["delay"] = self._chance.uniform(0.1, SPAN_S)
        if self._often("expiry"):
            about["ttl"] = self._chance.uniform(0.1, SPAN_S)
        if self._often("not durable"):
            about["durable"] = False
        return about

    async def _send(self, client: Client, bodies: list[bytes]) -> None:
        abouts = [self._about(body) for body in bodies]
        for body, about in zip(bodies, abouts, strict=True):
            self._fates[body] = Fate(durable=about.get("durable", True))
        if self._often("transactions", 0.5) or self._often("two-phase", 0.5):
            await self._send_together(client, bodies, abouts)
            return
        for body, about in zip(bodies, abouts, strict=True):
            for _ in range(2 if self._often("duplicate ids") else 1):
                try:
                    await client.send("orders", body, **about)
                except MeshqError:
                    continue
                self._fates[body].confirmed = True

    async def _send_together(self, client: Client, bodies: list[bytes], abouts: list[dict[str, Any]]) -> None:
        roll_back = self._chance.random() < 0.3
        prepare = self.on("two-phase") and (not self.on("transactions") or self._chance.random() < 0.5)
        xid = b"xid " + bodies[0][:20] if prepare else None
        try:
            async with client.transaction(xid) as transaction:
                for body, about in zip(bodies, abouts, strict=True):
                    await transaction.send("orders", body, **about)
                if prepare:
                    await transaction.prepare()
                if roll_back:
                    await transaction.rollback()
                else:
                    await transaction.commit()
        except MeshqError as error:
            if error.outcome != "not_done":
                await self._decide(client, xid)
            return
        for body in bodies:
            self._fates[body].refused, self._fates[body].confirmed = roll_back, not roll_back

    async def _decide(self, client: Client, xid: bytes | None) -> None:
        """Roll back a prepared transaction whose end is not known; otherwise it waits for ever."""
        if xid is None:
            return
        try:
            await client.rollback(xid)
        except MeshqError:
            # It is not prepared.
            return

    # -- consumers

    async def _consume(self, node: str, number: int) -> None:
        options: dict[str, Any] = {}
        if self.on("filters"):
            options["filter"] = f"side = {number}"
        if self.on("consumer priority"):
            options["priority"] = number
        if self.on("exclusive"):
            options["exclusive"] = number == 0
        async with self._client(node) as client, client.consumer("orders", window=4, **options) as consumer:
            while not self._over.is_set():
                try:
                    delivery = await consumer.receive(timeout=1)
                    if delivery is not None:
                        await self._take(client, consumer, delivery)
                except MeshqError:
                    continue

    async def _take(self, client: Client, consumer: Consumer, delivery: Delivery) -> None:
        await trio.sleep(self._chance.uniform(0.0, 0.3))
        if self._often("given back", 0.3):
            await consumer.nack(delivery)
        elif self._often("dead letters", 0.3):
            await consumer.reject(delivery)
        elif self._often("acknowledged in transactions", 0.5):
            async with client.transaction() as transaction:
                await transaction.ack(delivery)
                if self._chance.random() < 0.3:
                    await transaction.rollback()
                    return
                await transaction.commit()
            self.taken[delivery.body] += 1
        else:
            await consumer.ack(delivery, confirm=True)
            self.taken[delivery.body] += 1

    # -- what happens besides

    def _side_work(self) -> dict[str, Callable[[Client], Awaitable[None]]]:
        return {
            "browsing": self._browse,
            "pause": self._pause,
            "moves": self._move,
            "redrive": self._redrive,
            "requests": self._ask,
        }

    async def _browse(self, client: Client) -> None:
        async with client.consumer("orders", browse=True) as browser:
            async for message in browser:
                if message.body not in self._fates:
                    raise MeetingError(f"P1: {message.body[:40]!r} is in the queue, and was never sent")

    async def _pause(self, client: Client) -> None:
        await client.pause_queue("orders")
        await trio.sleep(self._chance.uniform(0.0, 1.0))
        await client.resume_queue("orders")

    async def _move(self, client: Client) -> None:
        await client.move_messages("orders", "moved", limit=2)

    async def _redrive(self, client: Client) -> None:
        await client.redrive("dead", limit=2)

    async def _ask(self, client: Client) -> None:
        async with client.consumer("questions") as consumer, trio.open_nursery() as nursery:

            async def answer() -> None:
                question = await consumer.receive(timeout=5)
                if question is not None:
                    await question.reply(question.body)
                    await question.ack()

            nursery.start_soon(answer)
            question = b"%d" % self._chance.randrange(10**6)
            found = await client.request("questions", question, timeout=5)
            if found.body != question:
                raise MeetingError(f"P2: the answer to {question!r} is {found.body!r}")

    # -- the end

    async def _drain(self) -> None:
        """Take all messages that are left at every node."""
        if self.on("pause"):
            async with self._cluster.client("n0") as client:
                await client.resume_queue("orders")
        await trio.sleep(QUIET_S)
        for node in self._cluster.nodes:
            async with self._cluster.client(node) as client:
                for queue in (*ENDS, *COPIES):
                    async with client.consumer(queue) as consumer:
                        while (delivery := await consumer.receive(timeout=5)) is not None:
                            await delivery.ack(confirm=True)
                            (self.copies if queue in COPIES else self.taken)[delivery.body] += 1

    def _judge(self) -> None:
        for found, what in ((self.taken, "a message"), (self.copies, "a copy")):
            for body, times in found.items():
                fate = self._fates.get(body)
                if fate is None:
                    raise MeetingError(f"P1: {what} {body[:40]!r} was never sent")
                if fate.refused:
                    raise MeetingError(f"P3: {what} {body[:40]!r} was rolled back, and is there")
                if times > 1:
                    raise MeetingError(f"P4: {what} {body[:40]!r} was taken {times} times")
        faults = self.on("kill") or self.on("power loss")
        for body, fate in self._fates.items():
            if fate.confirmed and (fate.durable or not faults):
                if not self.taken[body]:
                    raise MeetingError(f"P5: {body[:40]!r} was confirmed, and is lost")
                if self.on("divert") and not self.copies[body]:
                    raise MeetingError(f"P6: the copy of {body[:40]!r} is lost")


async def meeting(cluster: Cluster, row: Row) -> None:
    """Let the features of a row meet.

    Checkpoint: always.  Cancellation: ends the meeting.
    Raises:
        MeetingError: a promise is broken.
    """
    await Meeting(cluster, row).run()
