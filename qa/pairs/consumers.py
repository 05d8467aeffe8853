"""The consumers of a meeting: of the queue, and of the subscriptions that get a copy of each message."""

from __future__ import annotations

from typing import Any

import trio

from meshq.client import Client, Consumer, Delivery
from meshq.errors import MeshqError, RefusedError
from qa.pairs.accounts import MESSAGES, Book
from qa.pairs.scene import LOOK_S, MeetingScene


class Consumers:
    """Take messages, give them back, and reject them, as the features of a row ask for."""

    def __init__(self, scene: MeetingScene) -> None:
        self._scene = scene

    async def consume(self, number: int) -> None:
        """Consume from the queue until the meeting is over.  Checkpoint: always.  Cancellation: ends it."""
        scene, options = self._scene, self._options(number)
        book = scene.accounts.books[MESSAGES]
        async with scene.client(scene.last) as client:
            while not scene.over.is_set():
                if scene.cleared:
                    await trio.sleep(LOOK_S)
                    continue
                scene.consumers += 1
                try:
                    async with client.consumer("orders", window=4, **options) as consumer:
                        # It leaves now and then where that means something to the queue.
                        await self._work(client, consumer, book, 8 if scene.on("auto-delete") else 10_000)
                except MeshqError:
                    # A cursor has the queue, or the queue was deleted.
                    await trio.sleep(LOOK_S)
                finally:
                    scene.consumers -= 1
                if scene.on("auto-delete"):
                    await scene.rest(1.0)

    def _options(self, number: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._scene.on("filters"):
            options["filter"] = f"side = {number}"
        if self._scene.on("consumer priority"):
            options["priority"] = number
        if self._scene.on("exclusive"):
            options["exclusive"] = number == 0
        return options

    async def subscribe(self, name: str) -> None:
        """Consume from a subscription until the meeting is over.  Checkpoint: always.  Cancellation: ends it."""
        scene = self._scene
        async with scene.client(scene.first) as client:
            while not scene.over.is_set():
                try:
                    async with subscription(client, name) as consumer:
                        await self._work(client, consumer, scene.accounts.books[name], 8)
                except MeshqError:
                    # The one before is not gone yet.
                    await trio.sleep(LOOK_S)
                await scene.rest(1.0)

    async def _work(self, client: Client, consumer: Consumer, book: Book, looks: int) -> None:
        """Take messages until they are to be left to others, or the consumer is of no further use."""
        scene = self._scene
        leaves = book is scene.accounts.books[MESSAGES]
        for _ in range(looks):
            if scene.over.is_set() or (leaves and scene.cleared):
                return
            try:
                delivery = await consumer.receive(timeout=1)
            except RefusedError:
                raise
            except MeshqError:
                continue
            if delivery is not None:
                try:
                    await self._take(client, consumer, delivery, book)
                except MeshqError:
                    continue

    async def _take(self, client: Client, consumer: Consumer, delivery: Delivery, book: Book) -> None:
        scene = self._scene
        await scene.rest(0.3)
        if scene.often("given back", 0.3):
            await consumer.nack(delivery)
        elif scene.often("dead letters", 0.3):
            await consumer.reject(delivery)
        elif scene.often("acknowledged in transactions", 0.5):
            roll_back = scene.chance.random() < 0.3
            try:
                async with client.transaction() as transaction:
                    await transaction.ack(delivery)
                    if roll_back:
                        await transaction.rollback()
                        return
                    await transaction.commit()
            except MeshqError as error:
                _note_doubt(book, delivery, error)
                raise
            book.taken[delivery.body] += 1
        else:
            try:
                await consumer.ack(delivery, confirm=True)
            except MeshqError as error:
                _note_doubt(book, delivery, error)
                raise
            book.taken[delivery.body] += 1


def subscription(client: Client, name: str) -> Consumer:
    """Make a consumer of one of the subscriptions."""
    return client.subscribe("news", name=name, durable=True, shared=name == "desk", window=4)


def _note_doubt(book: Book, delivery: Delivery, error: MeshqError) -> None:
    if error.outcome != "not_done":
        book.in_doubt.add(delivery.body)
