"""Reading the body of a message that is held, chunk by chunk."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import TracebackType
from typing import Final, Self

import trio

from meshq import limits
from meshq.client.calls._calls import OpenCompletion
from meshq.client.incoming._body_reads import Reader
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.receive._body_stream_life import new_life
from meshq.client.session._session import ClientSession
from meshq.errors import BusyError, ClosedError, MeshqError, StaleDeliveryError
from meshq.loops import check_in_trio

#: Chunks that are asked for before they are wanted: a round trip does not slow the reader down.
AHEAD: Final = 4


class BodyStream:
    """A stream of the chunks of one body, each of at most 1 MiB; used as ``async with``, by one task at a time.

    No more is in memory than a few chunks, however large the body is.
    """

    def __init__(self, delivery: ReceivedMessage, reader: Reader, session: ClientSession) -> None:
        self._delivery = delivery
        self._reader = reader
        self._session = session
        self._run = delivery._run
        # Whether the bytes are here already.
        large = self._run.large
        self._here = large is None or large.fetched
        self._count = -(-delivery.size // limits.LARGE_BLOCK_BYTES)
        # Numbers of chunks asked for, and returned.
        self._asked = 0
        self._given = 0
        self._ahead: deque[OpenCompletion] = deque()
        self._life = new_life()
        self._busy = False

    def __repr__(self) -> str:
        return f"<BodyStream of {self._delivery.size} bytes {self._life.state} {self._given}/{self._count}>"

    async def __aenter__(self) -> Self:
        """Begin to read.  Checkpoint: always.  Cancellation: nothing changed.
        Raises: ClosedError: it was used before."""
        check_in_trio("connect")
        if self._life.state != "new":
            raise ClosedError("a body is opened once; open() gives another stream")
        self._life.on("open")
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the chunks that were read ahead.  Checkpoint: never."""
        self._life.on("close")
        self._ahead.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk.

        Checkpoint: always.  Cancellation: the chunk comes with the next call.
        Raises:
            StopAsyncIteration: that was all.
            BusyError: another task is reading.
            StaleDeliveryError: the message is settled, or its session or consumer is gone.
            RefusedError: the broker can't read it.
            CallTimeoutError, ConnectionBrokenError, ClosedError: it was not read.
        """
        if self._life.state != "open":
            check_in_trio("connect")
            raise ClosedError("the stream is not open: use it in 'async with'")
        if self._busy:
            raise BusyError("two tasks read one body")
        self._busy = True
        try:
            chunk = await self._next()
        finally:
            self._busy = False
        self._given += 1
        return chunk

    async def _next(self) -> bytes:
        if self._given == self._count:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        if self._here:
            await trio.lowlevel.checkpoint()
            start = self._given * limits.LARGE_BLOCK_BYTES
            return self._delivery.body[start : start + limits.LARGE_BLOCK_BYTES]
        self._ask()
        await self._session.deadlines.wait(self._ahead[0])
        chunk: bytes = self._ahead.popleft().result()
        return chunk

    def _ask(self) -> None:
        run, reader, session = self._run, self._reader, self._session
        if run.settled or run.epoch != reader.epoch:
            raise StaleDeliveryError("the message was settled, or its session or consumer is gone")
        while self._asked < self._count and len(self._ahead) < AHEAD:
            waiter = OpenCompletion("reading a body")
            waiter.since = session.now()
            self._ahead.append(waiter)
            session.body_reads.ask(reader, run.first, self._asked, partial(_got, waiter))
            self._asked += 1
        session.stream.flush()


def _got(waiter: OpenCompletion, found: bytes | MeshqError) -> None:
    if isinstance(found, MeshqError):
        waiter.fail(found)
    else:
        waiter.succeed(found)
