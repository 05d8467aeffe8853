"""The writer of the bytes that a link could not send at once."""

from __future__ import annotations

import trio

from meshq.abc import Stream
from meshq.errors import ConnectionBrokenError, SecurityError


class BacklogWriter:
    """The writer of one link: a task while bytes wait unsent.  Between ``begin`` and ``end`` it has a nursery."""

    __slots__ = ("_nursery", "_stream", "_writing")

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._nursery: trio.Nursery | None = None
        self._writing = False

    def begin(self, stream: Stream, nursery: trio.Nursery) -> None:
        """Write to ``stream`` from now on, with tasks in ``nursery``."""
        self._stream, self._nursery = stream, nursery

    def end(self) -> None:
        """Drop the unsent bytes from now on: a nursery that closes takes no new task."""
        self._nursery = None

    def wake(self) -> None:
        """Write the unsent bytes, if there is a nursery."""
        if self._nursery is not None and not self._writing:
            self._writing = True
            self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        assert self._stream is not None
        try:
            await self._stream.flush()
        except (ConnectionBrokenError, SecurityError):
            # The reader gets the same.
            pass
        finally:
            self._writing = False
