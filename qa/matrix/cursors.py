"""Entries of the delivery matrix: durable cursors, and the meaning of other features for these.

That of paging and of large bodies is in the columns: the cells of cursors are played there, too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import trio

from meshq.client import Cursor, ReceivedMessage, SequenceHole
from meshq.errors import CursorHeldError
from qa.matrix.feature import Feature
from qa.matrix.stage import QUIET_S, Stage

#: A time to live in seconds, long enough for everything that is arranged.
SPAN_S = 30.0


async def tape(stage: Stage) -> Cursor:
    """The cursor of a queue, which is made where nothing is left of it."""
    await stage.client.create_queue(stage.at("work"))
    return stage.client.cursor(stage.at("work"), "tape")


async def read(cursor: Cursor) -> list[ReceivedMessage]:
    """All messages that come from the place of the cursor on, until nothing came for a while."""
    got: list[ReceivedMessage] = []
    while batch := await cursor.receive_many(100, timeout=QUIET_S):
        got += batch
    return got


def expired(holes: list[SequenceHole]) -> list[tuple[int, int]]:
    """The numbers of a range whose messages have expired."""
    return [(hole.lo, hole.hi) for hole in holes if hole.kind == "expired"]


class Replay(Feature):
    """A cursor browses a range as often as it likes, takes nothing, and goes on behind its last acknowledgement."""

    name = "cursor"
    #: The same range twice; what comes from the place on; and what is left of the queue.
    works = ((b"2", b"3"), (b"2", b"3"), (b"2", b"3"), 2)
    gone = ((), (), (), 0)

    async def arrange(self, stage: Stage) -> None:
        async with await tape(stage) as cursor:
            await stage.send_many("work", [b"1", b"2", b"3"])
            first = await cursor.receive(timeout=1)
            assert first is not None
            await cursor.ack_to(first)

    async def act(self, stage: Stage) -> Any:
        async with await tape(stage) as cursor:
            lo, hi = cursor.processed, await cursor.high_mark()
            ranges = []
            for _ in range(2):
                async with cursor.browse(lo, hi) as browser:
                    ranges.append([message.body async for message in browser])
            rest = [message.body for message in await read(cursor)]
        return *ranges, rest, (await stage.queue("work")).ready


class Numbered(Feature):
    """A cursor reads messages of several priorities and groups in the order in which they came, and sees both."""

    name = "priorities and groups for a cursor"
    works = ((b"1", 1, "b"), (b"2", 9, "a"), (b"3", 4, "a"), (b"4", 9, "b"))
    gone = ()

    async def arrange(self, stage: Stage) -> None:
        async with await tape(stage):
            for body, priority, group in self.works:
                await stage.send("work", body, priority=priority, group=group)

    async def act(self, stage: Stage) -> Any:
        async with await tape(stage) as cursor:
            return [(message.body, message.priority, message.group) for message in await read(cursor)]


class Pinned(Feature):
    """A message that a cursor has pinned does not expire before it is acknowledged; another one leaves a hole."""

    name = "expiry under a cursor"
    uses = ("time to live",)
    works = ((b"pinned", b"long"), ((2, 3),))
    gone = ((), ())

    async def arrange(self, stage: Stage) -> None:
        async with await tape(stage) as cursor:
            for body, ttl in ((b"pinned", SPAN_S), (b"short", SPAN_S), (b"long", 100 * SPAN_S)):
                await stage.send("work", body, ttl=ttl)
            await cursor.pin(2)

    async def act(self, stage: Stage) -> Any:
        await trio.sleep(2 * SPAN_S)
        async with await tape(stage) as cursor:
            holes = expired(await cursor.holes(1, min(4, await cursor.high_mark())))
            return [message.body for message in await read(cursor)], holes


class Holding(Feature):
    """While a cursor has a queue, consumers and purges are refused; without it the messages are for consumers."""

    name = "queue of a cursor"
    works = ("held", "held", (b"1",))
    # The cursor stays when its messages were not durable.
    left = ("held", "held", ())
    gone = ("taken", "taken", ())

    async def arrange(self, stage: Stage) -> None:
        async with await tape(stage):
            await stage.send("work", b"1")

    async def act(self, stage: Stage) -> Any:
        client, work = stage.client, stage.at("work")
        await client.create_queue(work)
        tries = [await self._tried(self._consume(stage)), await self._tried(client.purge_queue(work))]
        for one in await client.cursors(work):
            await client.delete_cursor(work, one.name)
        return *tries, await stage.drain("work")

    async def _consume(self, stage: Stage) -> None:
        async with stage.consumer("work"):
            pass

    async def _tried(self, call: Awaitable[object]) -> str:
        try:
            await call
        except CursorHeldError:
            return "held"
        return "taken"


CURSORS = (Replay(), Numbered(), Pinned(), Holding())
