"""The calls of a cursor.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Cursor``: change that.
"""

from __future__ import annotations

from typing import Final

from meshq import client as trio_client
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._loop_thread import TaskCall, forwarded


class CursorCalls:
    """The calls of a cursor."""

    _inner: trio_client.Cursor
    _call: TaskCall
    _block: TaskBlockRunner

    ack_to: Final = forwarded(trio_client.Cursor.ack_to)

    @property
    def epoch(self) -> int:
        """Rises when the cursor is registered anew: places of another epoch mean nothing."""
        return self._inner.epoch

    @property
    def fence(self) -> int:
        """Rises with each owner of the cursor, and with each cursor; no other owner ever has it."""
        return self._inner.fence

    high_mark: Final = forwarded(trio_client.Cursor.high_mark)
    holes: Final = forwarded(trio_client.Cursor.holes)
    lag: Final = forwarded(trio_client.Cursor.lag)

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._inner.name

    pin: Final = forwarded(trio_client.Cursor.pin)

    @property
    def position(self) -> int:
        """The sequence from which on messages are received next."""
        return self._inner.position

    @property
    def processed(self) -> int:
        """Everything below this sequence is acknowledged."""
        return self._inner.processed

    @property
    def queue(self) -> str:
        """The queue, as it was asked for."""
        return self._inner.queue

    receive: Final = forwarded(trio_client.Cursor.receive)
    receive_many: Final = forwarded(trio_client.Cursor.receive_many)
    seek: Final = forwarded(trio_client.Cursor.seek)
