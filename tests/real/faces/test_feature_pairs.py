"""Features that meet on one queue, over every face, in real time: asyncio and threads have no virtual time.

It is the simulated meeting in small: the same rows and settings, and the same accounts at the end; no node dies.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from qa.pairs.accounts import DIVERTED, MESSAGES, Fate, MeetingAccounts
from qa.pairs.covering import Row, array_of, counts_of, pairs_of
from qa.pairs.features import COPIES, ENDS, queues_of, settings_of
from tests.real.faces.kit import Face, promise, received

#: What needs neither a second node nor a fault, nor time that passes.
MET: Final = (
    "priority",
    "groups",
    "duplicate ids",
    "large bodies",
    "not durable",
    "transactions",
    "acknowledged in transactions",
    "paging",
    "given back",
    "dead letters",
    "redrive",
    "browsing",
    "pause",
    "moves",
    "purge",
    "divert",
    "cursors",
)
ROWS: Final = 12
MESSAGES_SENT: Final = 8
SHORT_S: Final = 0.05


class SmallMeeting:
    """The features of a row on one queue, over one face."""

    def __init__(self, face: Face, row: Row, seed: int) -> None:
        self._face, self._row, self._chance = face, row, random.Random(seed)
        self.accounts = MeetingAccounts(row)
        self._sent = face.signal()
        self._done = False

    def _often(self, feature: str) -> bool:
        return feature in self._row and self._chance.random() < 0.4

    async def run(self, client: Any, other: Any) -> None:
        """Let producer and consumer work at once, then an operator and a cursor, and compare."""
        if "divert" in self._row:
            await client.create_divert("copy", address="orders", forwarding_address=DIVERTED)
        await self._face.together(lambda: self._produce(client), lambda: self._consume(other))
        await self._operate(client)
        if "cursors" in self._row:
            await self._read(client)
        for queue in (*ENDS, *COPIES):
            await self._take_all(client, queue, DIVERTED if queue in COPIES else MESSAGES)
        self.accounts.judge()

    async def _produce(self, client: Any) -> None:
        for number in range(MESSAGES_SENT):
            body = b"%d" % number + b" " * (150_000 if self._often("large bodies") else 0)
            about: dict[str, Any] = {"duplicate_id": str(number)}
            if "priority" in self._row:
                about["priority"] = number % 10
            if "groups" in self._row:
                about["group"] = f"group {number % 3}"
            if self._often("not durable"):
                about["durable"] = False
            fate = self.accounts.fates[body] = Fate()
            if self._often("transactions"):
                fate.refused = number % 2 == 0
                async with client.transaction() as transaction:
                    await transaction.send("orders", body, **about)
                    await (transaction.rollback() if fate.refused else transaction.commit())
            else:
                for _ in range(2 if self._often("duplicate ids") else 1):
                    await client.send("orders", body, **about)
            fate.confirmed = not fate.refused
        self._done = True

    async def _consume(self, client: Any) -> None:
        async with client.consumer("orders", window=4) as consumer:
            # The rest is for the operator.
            for _ in range(MESSAGES_SENT // 2):
                delivery = await consumer.receive(timeout=SHORT_S)
                if delivery is not None:
                    await self._take(client, consumer, delivery)
                elif self._done:
                    return

    async def _take(self, client: Any, consumer: Any, delivery: Any) -> None:
        if self._often("given back"):
            await consumer.nack(delivery)
            return
        if self._often("dead letters"):
            await consumer.reject(delivery)
            return
        if self._often("acknowledged in transactions"):
            async with client.transaction() as transaction:
                await transaction.ack(delivery)
        else:
            await consumer.ack(delivery, confirm=True)
        self.accounts.books[MESSAGES].taken[delivery.body] += 1

    async def _operate(self, client: Any) -> None:
        if "pause" in self._row:
            await client.pause_queue("orders")
        if "browsing" in self._row:
            async with client.consumer("orders", browse=True) as browser:
                self.accounts.check_known([message.body async for message in browser], "the queue")
        if "moves" in self._row:
            await client.move_messages("orders", "moved", limit=1)
        if "redrive" in self._row:
            await client.redrive("dead", limit=1)
        if "pause" in self._row:
            await client.resume_queue("orders")
        if "purge" in self._row and self._chance.random() < 0.5:
            self.accounts.purged = self.accounts.purged_most = await client.purge_queue("orders")

    async def _read(self, client: Any) -> None:
        async with client.cursor("orders", "tape") as cursor:
            if (first := await cursor.receive(timeout=SHORT_S)) is not None:
                await cursor.ack_to(first)
                self.accounts.books[MESSAGES].taken[first.body] += 1
        await client.delete_cursor("orders", "tape")

    async def _take_all(self, client: Any, queue: str, name: str) -> None:
        async with client.consumer(queue) as consumer:
            while _held(await client.queue(queue)):
                delivery = await received(consumer)
                await consumer.ack(delivery, confirm=True)
                self.accounts.books[name].taken[delivery.body] += 1


def _held(queue: Any) -> int:
    return int(queue.ready + queue.delivering + queue.scheduled + queue.delayed)


def test_every_pair_of_these_meets_on_every_face() -> None:
    counts = counts_of(array_of(MET, ROWS), MET)
    assert min(counts[pair] for pair in pairs_of(MET)) >= 1


@pytest.mark.slow
@promise
async def test_no_promise_is_broken_where_features_meet_on_a_face(face: Face, tmp_path: Path) -> None:
    for seed, row in enumerate(array_of(MET, ROWS)):
        settings: dict[str, Any] = {"queues": queues_of(row), "address_settings": settings_of(row)}
        async with (
            face.broker(data_dir=str(tmp_path / str(seed)), **settings) as broker,
            face.client(broker) as client,
            face.client(broker) as other,
        ):
            await SmallMeeting(face, row, seed).run(client, other)
