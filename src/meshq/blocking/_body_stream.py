"""Reading the body of a message that is held, chunk by chunk, in a thread."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from meshq import client as trio_client
from meshq.blocking._loop_thread import ThreadLoop


class BodyStream:
    """A stream of the chunks of one body, each of at most 1 MiB; used as ``with``, by one thread at a time.

    No more is in memory than a few chunks, however large the body is.
    """

    def __init__(self, inner: trio_client.BodyStream, loop: ThreadLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        """Begin to read.  Interrupted: nothing changed.
        Raises: ClosedError: it was used before.
        """
        self._loop.call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the chunks that were read ahead."""
        self._loop.call(self._inner.__aexit__, kind, error, trace)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next chunk.

        Interrupted: the chunk comes with the next call.
        Raises:
            StopIteration: that was all.
            BusyError: another thread is reading.
            StaleDeliveryError: the message is settled, or its session or consumer is gone.
            RefusedError: the broker can't read it.
            CallTimeoutError, ConnectionBrokenError, ClosedError: it was not read.
        """
        chunk = self._loop.call(self._chunk)
        if chunk is None:
            raise StopIteration
        return chunk

    async def _chunk(self) -> bytes | None:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            return None
