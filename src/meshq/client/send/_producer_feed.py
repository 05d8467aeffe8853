"""The feed of a producer: messages that another thread has gathered are sent by the client's thread.

The other thread gathers and goes on; here, in the client's own thread, a task hands over what has gathered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import trio

from meshq.client.send._envelope import EnvelopeEncoder, Row
from meshq.client.send._producer import Producer
from meshq.errors import MeshqError

#: A message that is ready to be sent: a durable body and nothing else, or body, envelope and durability.
Item: TypeAlias = bytes | tuple[bytes, Row | None, bool]


class ProducerFeed:
    """The messages that another thread has gathered for one producer.

    ``on_settled`` is called when messages are confirmed or have failed, with their number and the error.
    """

    def __init__(self, producer: Producer, on_settled: Callable[[int, MeshqError | None], None]) -> None:
        #: Messages taken and not sent yet.  The other thread only appends.
        self.items: deque[Item] = deque()
        #: Messages that may be unconfirmed.
        self.window: int = producer._window
        self._producer = producer
        self._encoder = EnvelopeEncoder()
        self._order = trio.Lock()
        producer._lend(on_settled)

    def row(self, *parts: Any) -> Row:
        """The envelope of a message, as ``EnvelopeEncoder.row``; for one thread at a time.

        Raises:
            SettingsError: a part is not allowed.
        """
        return self._encoder.row(*parts)

    async def feed(self) -> None:
        """Send all gathered messages in order; messages that can't be sent any more fail.

        Checkpoint: when there is something.  Cancellation: what was not handed over stays in the line.
        """
        items, take = self.items, self._producer._take
        while items:
            async with self._order:
                while items:
                    item = items[0]
                    try:
                        if isinstance(item, bytes):
                            await take(item, None, True)
                        else:
                            await take(*item)
                    except MeshqError as error:
                        self._drop(error)
                        return
                    items.popleft()

    def _drop(self, error: MeshqError) -> None:
        count = len(self.items)
        for _ in range(count):
            self.items.popleft()
        self._producer._drop(count, error)

    async def report(self) -> None:
        """Send the gathered messages, then raise the error of failed messages, if any.

        Checkpoint: always.  Cancellation: it is raised another time.
        Raises:
            MeshqError: messages have failed, or the producer is of no further use.
        """
        await self.feed()
        await trio.lowlevel.checkpoint()
        producer = self._producer
        producer._check()
        if producer._failures:
            await producer._report()

    async def flush(self) -> None:
        """Send all gathered messages, and wait as ``Producer.flush`` does.

        Checkpoint: always.  Cancellation: what was taken goes on its way.
        Raises:
            MeshqError: messages failed; ``results`` says which.
        """
        await self.feed()
        await self._producer.flush()

    async def last(self) -> None:
        """Send the last gathered messages before the producer is closed.

        Checkpoint: when there is something.  Cancellation: what was not handed over is dropped.
        """
        try:
            await self.feed()
        finally:
            if self.items:
                self._drop(MeshqError("its producer was closed before the message was sent", outcome="not_done"))
