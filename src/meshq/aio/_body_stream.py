"""Reading the body of a message that is held, chunk by chunk, in a task of asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from meshq import client as trio_client
from meshq.aio._loop_thread import TaskLoop


class BodyStream:
    """A stream of the chunks of one body, each of at most 1 MiB; used as ``async with``, by one task at a time.

    No more is in memory than a few chunks, however large the body is.
    """

    def __init__(self, inner: trio_client.BodyStream, loop: TaskLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    async def __aenter__(self) -> Self:
        """Begin to read.  Checkpoint: always.  Cancellation: nothing changed.
        Raises: ClosedError: it was used before.
        """
        await self._loop.call(self._inner.__aenter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the chunks that were read ahead.  Checkpoint: always."""
        await self._loop.call(self._inner.__aexit__, kind, error, trace)

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
        chunk = await self._loop.call(self._chunk)
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def _chunk(self) -> bytes | None:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            return None
