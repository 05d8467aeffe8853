"""The calls of a cursor.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Cursor``: change that.
"""

from __future__ import annotations

from meshq import client as trio_client
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._loop_thread import ThreadCall
from meshq.client import CursorLag, CursorStart, ReceivedMessage, SequenceHole


class CursorCalls:
    """The calls of a cursor."""

    _inner: trio_client.Cursor
    _call: ThreadCall
    _block: ThreadBlockRunner

    def ack_to(self, to: int | ReceivedMessage) -> None:
        """Acknowledge everything up to a message, with it, or below a sequence: it leaves the queue.

        What was acknowledged before stays so: a lower place changes nothing.

        Interrupted: it may be acknowledged or not: repeat it.
        Raises:
            SettingsError: this is neither a message nor a sequence.
            UsageError: the message is of another queue, or the sequence above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.ack_to, to)

    @property
    def epoch(self) -> int:
        """Rises when the cursor is registered anew: places of another epoch mean nothing."""
        return self._inner.epoch

    @property
    def fence(self) -> int:
        """Rises with each owner of the cursor, and with each cursor; no other owner ever has it."""
        return self._inner.fence

    def high_mark(self) -> int:
        """Return the high mark of the queue: every message with a lower sequence can be read, and stays so.

        Interrupted: nothing has changed.
        Raises:
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.high_mark)

    def holes(self, lo: int, hi: int) -> list[SequenceHole]:
        """Return the sequences from ``lo`` up to, and without, ``hi`` that no message has, and why.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: these are no sequences.
            UsageError: the range ends above the high mark.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.holes, lo, hi)

    def lag(self) -> CursorLag:
        """Return how far the cursor is behind.

        Interrupted: nothing has changed.
        Raises:
            NotFoundError: the cursor is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.lag)

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._inner.name

    def pin(self, to: int | ReceivedMessage) -> None:
        """Keep everything up to a message, with it, or below a sequence, from expiring until it is acknowledged.

        Interrupted: it may be pinned or not: repeat it.
        Raises:
            SettingsError: this is neither a message nor a sequence.
            UsageError: the message is of another queue, or the sequence above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.pin, to)

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

    def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """Receive the message with the next sequence; None at the timeout.

        There is nothing to settle: see ``ack_to``.

        Interrupted: no message is lost.
        Raises:
            BusyError: another thread is receiving.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.receive, timeout)

    def receive_many(self, n: int, timeout: float | None = None) -> list[ReceivedMessage]:
        """Receive up to ``n`` messages, as soon as one is here; ``[]`` at the timeout.

        Interrupted: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another thread is receiving.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.receive_many, n, timeout)

    def seek(self, position: int | CursorStart) -> None:
        """Move the reader, not the cursor: to a sequence, to the first one that is not acknowledged, or to the end.

        Interrupted: the reader is where it was or where it goes.
        Raises:
            SettingsError: the position is none.
            BusyError: another thread is receiving.
            NotFoundError: what is there is acknowledged, and gone; names the sequences that there are.
            UsageError: the position is above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.seek, position)
