"""The operators of a meeting, and the readers, askers and intruders beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from meshq.client import Client, Cursor, ReceivedMessage
from meshq.errors import MeshqError, NotFoundError, RefusedError, SecurityError
from qa.pairs.accounts import MESSAGES, Fate, MeetingError
from qa.pairs.features import NOTES
from qa.pairs.scene import MeetingScene

Work = Callable[[Client], Awaitable[object]]
TAPE = "tape"


class Operators:
    """The work beside producers and consumers, a function for each feature."""

    def __init__(self, scene: MeetingScene) -> None:
        self._scene = scene
        self._tries = 0

    def works(self) -> list[tuple[str, Work]]:
        """Return the node and the function of each work whose feature is on."""
        scene = self._scene
        first: dict[str, Work] = {
            "browsing": self._browse,
            "pause": self._pause,
            "moves": self._move,
            "redrive": self._redrive,
            "requests": self._ask,
            "purge": self._purge,
            "permissions": self._intrude,
        }
        last: dict[str, Work] = {"cursors": self._read, "bridges": self._rest_bridge}
        return [
            (node, work)
            for node, works in ((scene.first, first), (scene.last, last))
            for feature, work in works.items()
            if scene.on(feature)
        ]

    async def repeat(self, node: str, work: Work) -> None:
        """Do some work again and again until the meeting is over.  Checkpoint: always.  Cancellation: ends it."""
        scene = self._scene
        async with scene.client(node) as client:
            while not scene.over.is_set():
                await scene.rest(2.0, 0.1)
                try:
                    await work(client)
                except NotFoundError:
                    if not scene.on("auto-delete"):
                        raise
                except MeshqError:
                    # A node has died in the middle, or a cursor has the queue.
                    continue

    def _acted(self, feature: str, times: int = 1) -> None:
        self._scene.accounts.acted[feature] += times

    async def _browse(self, client: Client) -> None:
        async with client.consumer("orders", browse=True) as browser:
            seen = [message.body async for message in browser]
        self._scene.accounts.check_known(seen, "the queue")
        self._acted("browsing", len(seen))

    async def _pause(self, client: Client) -> None:
        await client.pause_queue("orders")
        await self._scene.rest(1.0)
        await client.resume_queue("orders")
        self._acted("pause")

    async def _move(self, client: Client) -> None:
        self._acted("moves", await client.move_messages("orders", "moved", limit=2))

    async def _rest_bridge(self, client: Client) -> None:
        """Pause the bridge for a while: the queue may then have no consumer."""
        await client.pause_bridge("away")
        await self._scene.rest(2.0)
        await client.resume_bridge("away")

    async def _redrive(self, client: Client) -> None:
        self._acted("redrive", await client.redrive("dead", limit=2))
        if self._scene.on("subscriptions"):
            self._acted("redrive", await client.redrive("dead news", limit=2))

    async def _purge(self, client: Client) -> None:
        if self._scene.chance.random() > 0.2:
            return
        accounts = self._scene.accounts
        try:
            removed = await client.purge_queue("orders")
        except MeshqError as error:
            if error.outcome != "not_done":
                accounts.purged_most = float("inf")
            raise
        accounts.purged += removed
        accounts.purged_most += removed
        self._acted("purge", removed)

    async def _ask(self, client: Client) -> None:
        async with client.consumer("questions") as consumer, trio.open_nursery() as nursery:

            async def answer() -> None:
                question = await consumer.receive(timeout=5)
                if question is not None:
                    await question.reply(question.body)
                    await question.ack()

            nursery.start_soon(answer)
            question = b"%d" % self._scene.chance.randrange(10**6)
            found = await client.request("questions", question, timeout=5)
            if found.body != question:
                raise MeetingError(f"P2: the answer to {question!r} is {found.body!r}")
            self._acted("requests")

    # -- who may not

    async def _intrude(self, client: Client) -> None:
        """Try one thing that the guest may not do."""
        scene = self._scene
        self._tries += 1
        body = b"%d of the guest" % self._tries
        scene.accounts.fates[body] = Fate(refused=True)
        tries: dict[str, Callable[[Client], Awaitable[object]]] = {
            "send": lambda guest: guest.send("orders", body),
            "send together": lambda guest: _send_both(guest, body),
            "consume": lambda guest: _opened(guest, browse=False),
            "browse": lambda guest: _opened(guest, browse=True),
            "purge": lambda guest: guest.purge_queue("orders"),
            "move": lambda guest: guest.move_messages("orders", NOTES),
            "redrive": lambda guest: guest.redrive("dead"),
            "delete": lambda guest: guest.delete_queue("orders"),
            "pause": lambda guest: guest.pause_queue("orders"),
            "subscribe": _subscribed,
            "take a cursor": _taken,
            "divert": lambda guest: guest.create_divert("theft", address="orders", forwarding_address=NOTES),
        }
        what = scene.chance.choice(list(tries))
        async with scene.guest() as guest:
            try:
                await tries[what](guest)
            except SecurityError:
                self._acted("permissions")
                return
            except RefusedError as error:
                raise MeetingError(f"P9: the guest tried to {what}, and was told {error!r}") from error
        raise MeetingError(f"P9: the guest was let in to {what}")

    # -- the cursor

    async def _read(self, client: Client) -> None:
        """Have the queue for a while: read all of it, twice, and acknowledge a part."""
        scene = self._scene
        async with scene.clearing():
            if scene.on("bridges"):
                await client.pause_bridge("away")
            try:
                async with client.cursor("orders", TAPE, lease=2) as cursor:
                    await self._read_all(cursor)
                await client.delete_cursor("orders", TAPE)
            finally:
                if scene.on("bridges"):
                    with trio.CancelScope(shield=True):
                        await client.resume_bridge("away")

    async def _read_all(self, cursor: Cursor) -> None:
        scene, book = self._scene, self._scene.accounts.books[MESSAGES]
        low, high = cursor.processed, await cursor.high_mark()
        # What is pinned can't expire any more.
        await cursor.pin(high)
        read: list[ReceivedMessage] = []
        while batch := await cursor.receive_many(10, timeout=0.3):
            read += batch
        scene.accounts.check_known([message.body for message in read], "what the cursor read")
        numbers = [message.sequence for message in read]
        if numbers != sorted(set(numbers)):
            raise MeetingError(f"P10: the cursor read the sequences {numbers}")
        pinned = [message for message in read if message.sequence < high]
        async with cursor.browse(low, high) as browser:
            again = [message.sequence async for message in browser]
        if again != [message.sequence for message in pinned]:
            raise MeetingError(f"P10: below {high} the cursor read {numbers}, and then {again}")
        if not pinned:
            return
        upto = scene.chance.choice(pinned)
        bodies = [message.body for message in pinned if message.sequence <= upto.sequence]
        try:
            await cursor.ack_to(upto)
        except MeshqError as error:
            if error.outcome != "not_done":
                book.in_doubt.update(bodies)
            raise
        book.taken.update(bodies)
        self._acted("cursors", len(bodies))


async def _send_both(guest: Client, body: bytes) -> None:
    async with guest.transaction() as transaction:
        await transaction.send(NOTES, body)
        await transaction.send("orders", body)


async def _opened(guest: Client, *, browse: bool) -> None:
    async with guest.consumer("orders", browse=browse):
        pass


async def _subscribed(guest: Client) -> None:
    async with guest.subscribe("news", name="archive", durable=True):
        pass


async def _taken(guest: Client) -> None:
    async with guest.cursor("orders", TAPE):
        pass
