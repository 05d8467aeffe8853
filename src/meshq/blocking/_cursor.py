"""The cursor for threads: each call goes to the trio cursor."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from meshq import client as trio_client
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._consumer import Consumer
from meshq.blocking._generated_cursor import CursorCalls
from meshq.client import ReceivedMessage
from meshq.errors import ClosedError

if TYPE_CHECKING:
    from meshq.blocking._generated_client import ClientCalls


class Cursor(CursorCalls):
    """A cursor."""

    def __init__(self, client: ClientCalls, inner: trio_client.Cursor) -> None:
        self._client = client
        self._inner = inner
        name = f"the cursor {inner.name!r} of {inner.queue!r}"
        self._block = ThreadBlockRunner(client._loop, inner, name, within=client._block)
        self._call = self._block.call
        self._loop = client._loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        """Register the cursor unless it is there, and take it, for which one needs the permission to consume; that of
        another user takes the permission to manage, too.

        Where another owner has it, that owner's lease is waited for, at most ``lease`` and 2 seconds.

        Interrupted: it may be registered; it is free when its lease has run out.
        Raises:
            UsageError: it was used before, or the queue can't have a cursor.
            NotFoundError: there is no such queue.
            CursorHeldError: another owner has renewed its lease meanwhile, or the queue has another cursor.
            RefusedError: the queue has consumers.
            BusyError: a transaction holds messages of the queue.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Release the cursor; see ``release``.

        Interrupted: it is free when its lease has run out.
        """
        return self._block.leave(error)

    def release(self) -> None:
        """Release the cursor: the next owner need not wait.  Twice is silent, and so is a cursor that is lost.

        Interrupted: it is free when its lease has run out.
        """
        if not self._block.shut():
            self._call(self._inner.release)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The message with the next sequence; the iteration ends when the cursor is released.

        Interrupted: no message is lost.
        Raises:
            StopIteration: the cursor was released.
        """
        try:
            message = self._call(self._inner.receive)
        except ClosedError:
            raise StopIteration from None
        assert message is not None
        return message

    def browse(self, lo: int, hi: int) -> Consumer:
        """Create a reader of the sequences from ``lo`` up to, and without, ``hi``, to be used as ``with``.

        It is an iterator of messages in this order, the same each time while none of them is acknowledged.

        After a lost session it fails; another one goes on behind the last message.

        Raises:
            SettingsError: these are no sequences.
            UsageError: the cursor is not open.
        """
        return Consumer(self._client, self._loop.run_sync_if_open(lambda: self._inner.browse(lo, hi)))
